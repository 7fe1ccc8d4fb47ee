/* What files need of the system beside the ring: looking at a descriptor, and calls that wait for nothing. */
#ifndef GMPLOOP_FILEIO_H
#define GMPLOOP_FILEIO_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#ifndef O_DIRECT
#define O_DIRECT 0
#endif
#ifndef O_PATH
#define O_PATH 0
#endif

/* What a descriptor is, and where: mount id and device, 0 where the system does not tell. Asks no server. */
typedef struct { uint32_t mode, major, minor; uint64_t size, mount; } gl_file_info;

#if defined(__linux__)
#include <sys/eventfd.h>
#include <sys/syscall.h>

typedef struct {
    uint32_t mask, blksize; uint64_t attributes; uint32_t nlink, uid, gid; uint16_t mode, pad;
    uint64_t ino, size, blocks, attributes_mask;
    struct { int64_t sec; uint32_t nsec; int32_t pad; } times[4];
    uint32_t rdev_major, rdev_minor, dev_major, dev_minor; uint64_t mount, more[13];
} gl_statx;

static inline int gl_file_look(int fd, gl_file_info *info) {
    gl_statx s;
    memset(info, 0, sizeof *info);
#ifdef SYS_statx
    /* AT_EMPTY_PATH | AT_STATX_DONT_SYNC; STATX_BASIC_STATS | STATX_MNT_ID */
    if (syscall(SYS_statx, fd, "", 0x1000 | 0x4000, 0x7ff | 0x1000, &s) == 0) {
        info->mode = s.mode;
        info->size = s.size;
        info->major = s.dev_major;
        info->minor = s.dev_minor;
        if (s.mask & 0x1000) info->mount = s.mount;
        return 0;
    }
#endif
    struct stat old;
    if (fstat(fd, &old) < 0) return -errno;
    info->mode = old.st_mode;
    info->size = (uint64_t)old.st_size;
    return 0;
}

static inline int gl_eventfd(void) { int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); return fd < 0 ? -errno : fd; }

static inline ssize_t gl_read_cached(int fd, void *buf, size_t n, long long offset) {
    struct iovec v = { buf, n };
    return syscall(SYS_preadv2, fd, &v, 1, (long)offset, (long)((uint64_t)offset >> 32), 0x8 /* RWF_NOWAIT */);
}

/* openat2() with RESOLVE_CACHED (Linux 5.12): -1 if the walk to the file would have to wait, or for any error. */
static inline int gl_openat2_cached(const char *path, int flags) {
    struct { uint64_t flags, mode, resolve; } how = { (uint64_t)(unsigned)flags, 0, 0x20 };
    return (int)syscall(437, -100, path, &how, sizeof how);
}
#else
static inline int gl_file_look(int fd, gl_file_info *info) {
    struct stat s;
    memset(info, 0, sizeof *info);
    if (fstat(fd, &s) < 0) return -errno;
    info->mode = s.st_mode;
    info->size = (uint64_t)s.st_size;
    return 0;
}
static inline int gl_eventfd(void) { return -ENOSYS; }
static inline ssize_t gl_read_cached(int fd, void *buf, size_t n, long long offset) {
    (void)fd; (void)buf; (void)n; (void)offset;
    errno = ENOSYS;
    return -1;
}
static inline int gl_openat2_cached(const char *path, int flags) { (void)path; (void)flags; return -1; }
#endif

/* Wait until fd is readable; 1, or 0 after the time. A signal does not lengthen it. */
static inline int gl_wait_readable(int fd, int ms) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    long long end = t.tv_sec * 1000LL + t.tv_nsec / 1000000 + ms;
    for (;;) {
        struct pollfd p = { fd, POLLIN, 0 };
        int r = poll(&p, 1, ms);
        if (r >= 0 || errno != EINTR) return r > 0;
        clock_gettime(CLOCK_MONOTONIC, &t);
        ms = (int)(end - t.tv_sec * 1000LL - t.tv_nsec / 1000000);
        if (ms < 0) return 0;
    }
}

#endif
