/* Has the package's modules get no memory from malloc() and its kin, for tests: preloaded.
 *
 *     cc -shared -fPIC no_memory.c -o no_memory.so
 *
 * The next `refuse` allocations that one of them asks for (of `refuse_size` bytes; 0: of any) fail. Counted in `refused`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

int refuse, refused;
size_t refuse_size;

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);

static int no(void *caller, size_t size) {
    Dl_info info;
    if (__atomic_load_n(&refuse, __ATOMIC_ACQUIRE) <= 0 || (refuse_size && size != refuse_size)) return 0;
    if (!dladdr(caller, &info) || !info.dli_fname || !strstr(info.dli_fname, "gmploop/core/")) return 0;
    __atomic_fetch_sub(&refuse, 1, __ATOMIC_ACQ_REL);
    __atomic_fetch_add(&refused, 1, __ATOMIC_ACQ_REL);
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n) { return no(__builtin_return_address(0), n) ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return no(__builtin_return_address(0), n * m) ? NULL : __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return no(__builtin_return_address(0), n) ? NULL : __libc_realloc(p, n); }
