/* What a real kqueue does and libkqueue 2.3.1 does not, for tests: preloaded, it changes what libkqueue sees.
 *
 *     cc -shared -fPIC -O1 like_bsd.c -o like_bsd.so     LD_PRELOAD=$PWD/like_bsd.so
 *
 * - libkqueue asks a socket for its error, which takes the error away: connect() seems to succeed, a reset looks like
 *   an end of file. It is told of some error and the socket keeps its own.
 * - libkqueue refuses devices, terminals and whatever has no type (pidfds). It is told that they are pipes.
 * - libkqueue has a thread of its own, and with a thread of somebody else's no run is known to be dead. It gets the name
 *   of one of gmploop's own.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int by_libkqueue(void *caller) {
    Dl_info info;
    return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "libkqueue.so");
}

int fstat(int fd, struct stat *st) {
    int r = fstatat(fd, "", st, AT_EMPTY_PATH);
    if (r == 0 && by_libkqueue(__builtin_return_address(0)) && (S_ISCHR(st->st_mode) || !(st->st_mode & S_IFMT)))
        st->st_mode = S_IFIFO;
    return r;
}

int getsockopt(int fd, int level, int name, void *value, socklen_t *size) {
    if (level == SOL_SOCKET && name == SO_ERROR && by_libkqueue(__builtin_return_address(0))) {
        *(int *)value = EIO;
        return 0;
    }
    return (int)syscall(SYS_getsockopt, fd, level, name, value, size);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*body)(void *), void *arg) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
    int r = real(thread, attr, body, arg);
    if (r == 0 && by_libkqueue(__builtin_return_address(0))) pthread_setname_np(*thread, "gmploop-sysmon");
    return r;
}
