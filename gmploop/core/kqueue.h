/* kqueue(2) in the few calls that the backend makes.
 *
 * Compiled in on macOS and the BSDs. On Linux it is built against libkqueue when GMPLOOP_HAVE_LIBKQUEUE is defined: for
 * tests. Elsewhere, and where kqueue lacks EVFILT_USER, gl_kq_missing says why every call fails.
 */
#ifndef GMPLOOP_KQUEUE_H
#define GMPLOOP_KQUEUE_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#if defined(__APPLE__) || defined(__FreeBSD__) || defined(__NetBSD__) || defined(__OpenBSD__) || \
    defined(__DragonFly__) || defined(GMPLOOP_HAVE_LIBKQUEUE)
#include <sys/types.h>
#include <sys/event.h>
#include <sys/stat.h>
#include <sys/time.h>
#ifdef EVFILT_USER
static const char *const gl_kq_missing = NULL;
#else
static const char *const gl_kq_missing = "this system's kqueue has no EVFILT_USER";
#endif
#else
static const char *const gl_kq_missing = "this build has no kqueue, which is compiled in on macOS and the BSDs";
#define EVFILT_READ 0
#define EVFILT_WRITE 1
struct kevent { uintptr_t ident; int filter; unsigned flags, fflags; void *udata; };
enum { EV_ADD, EV_DELETE, EV_CLEAR, EV_ONESHOT, EV_EOF };
static inline int kqueue(void) { errno = ENOSYS; return -1; }
#define kevent(kq, changes, n, events, m, timeout) \
    ((void)(kq), (void)(changes), (void)(n), (void)(events), (void)(m), (void)(timeout), errno = ENOSYS, -1)
#define EV_SET(e, id, filt, what, more, d, u) ((e)->ident = (id), (e)->filter = (filt), (e)->udata = (u))
#endif
#ifndef EVFILT_USER
#define EVFILT_USER 2
#endif
#ifndef NOTE_TRIGGER
#define NOTE_TRIGGER 0
#endif

typedef struct {
    int fd;                 /* -1: closed */
#ifdef GMPLOOP_HAVE_LIBKQUEUE
    struct { int copy, original; } *twins;      /* by number; each is a number + 1, 0 for none */
    int ntwins;
#endif
} gl_kq;

#ifdef GMPLOOP_HAVE_LIBKQUEUE
/* What libkqueue 2.3.1 lacks.
 * - A descriptor has one filter only; the second EV_ADD fails. So EVFILT_WRITE watches a copy of the descriptor. A
 *   connection that is closed behind the poller's back stays open until the next wait.
 * - EV_ADD of a filter that exists fails, also of one whose descriptor was closed. So it is deleted first.
 * - What fails says EFAULT for a descriptor that is closed, and for a device, which it cannot watch.
 * - It rounds timeouts down to milliseconds, so they are rounded up before.
 */
static inline void gl_kq_forget(gl_kq *kq, int fd, int filter) {
    struct kevent e;
    int ident = fd, copy = fd < kq->ntwins ? kq->twins[fd].copy - 1 : -1;
    if (filter == EVFILT_WRITE) ident = copy;
    if (ident < 0) return;
    EV_SET(&e, ident, filter, EV_DELETE, 0, 0, NULL);
    kevent(kq->fd, &e, 1, NULL, 0, NULL);
    if (filter == EVFILT_WRITE) {
        close(copy);
        kq->twins[fd].copy = kq->twins[copy].original = 0;
    }
}

/* Drop the copies whose originals were closed. */
static inline void gl_kq_look_after_copies(gl_kq *kq) {
    struct stat a, b;
    for (int fd = 0; fd < kq->ntwins; fd++)
        if (kq->twins[fd].copy && fstat(kq->twins[fd].copy - 1, &b) == 0 &&
            (fstat(fd, &a) < 0 || a.st_ino != b.st_ino || a.st_dev != b.st_dev))
            gl_kq_forget(kq, fd, EVFILT_WRITE);
}

static inline int gl_kq_copy(gl_kq *kq, int fd) {
    int i, copy = fcntl(fd, F_DUPFD_CLOEXEC, 0), most = copy > fd ? copy : fd;
    if (copy < 0) return -1;
    if (most >= kq->ntwins) {
        void *twins = realloc(kq->twins, sizeof(*kq->twins) * 2 * (most + 1));
        if (!twins) { close(copy); errno = ENOMEM; return -1; }
        kq->twins = twins;
        for (i = kq->ntwins, kq->ntwins = 2 * (most + 1); i < kq->ntwins; i++)
            kq->twins[i].copy = kq->twins[i].original = 0;
    }
    kq->twins[fd].copy = copy + 1;
    kq->twins[copy].original = fd + 1;
    return copy;
}
#endif

/* Set (EV_ADD, perhaps with EV_CLEAR) or remove (EV_DELETE) a filter. */
static inline int gl_kq_change(gl_kq *kq, int fd, int filter, int flags, uint32_t gen) {
    struct kevent e;
    int ident = fd, r;
#ifdef GMPLOOP_HAVE_LIBKQUEUE
    gl_kq_forget(kq, fd, filter);
    if (flags & EV_DELETE) return 0;
    if (filter == EVFILT_WRITE && (ident = gl_kq_copy(kq, fd)) < 0) return -1;
#endif
    EV_SET(&e, ident, filter, flags, 0, 0, (void *)(uintptr_t)gen);
    r = kevent(kq->fd, &e, 1, NULL, 0, NULL);
#ifdef GMPLOOP_HAVE_LIBKQUEUE
    if (r < 0 && fcntl(fd, F_GETFD) >= 0) errno = EPERM;
#endif
    return r;
}

/* Wake whoever waits: by any thread. */
static inline int gl_kq_wake(gl_kq *kq) {
    struct kevent e;
    EV_SET(&e, 0, EVFILT_USER, 0, NOTE_TRIGGER, 0, NULL);
    return kevent(kq->fd, &e, 1, NULL, 0, NULL);
}

static inline void gl_kq_close(gl_kq *kq, int inherited) {
#ifdef GMPLOOP_HAVE_LIBKQUEUE
    int fd;
    for (fd = 0; fd < kq->ntwins; fd++)
        if (kq->twins[fd].copy) close(kq->twins[fd].copy - 1);
    free(kq->twins);
    kq->twins = NULL;
    kq->ntwins = 0;
#endif
    /* A child has not inherited its parent's: the number is nobody's by now, or somebody else's. libkqueue's number is
     * there, but it knows it as the parent's still, so it must not be given out again. */
    if (kq->fd >= 0 && !inherited) close(kq->fd);
    kq->fd = -1;
}

static inline int gl_kq_open(gl_kq *kq) {
    struct kevent e;
    int error;
    kq->fd = kqueue();
    if (kq->fd < 0) return -1;
    EV_SET(&e, 0, EVFILT_USER, EV_ADD | EV_CLEAR, 0, 0, NULL);
    if (fcntl(kq->fd, F_SETFD, FD_CLOEXEC) >= 0 && kevent(kq->fd, &e, 1, NULL, 0, NULL) >= 0) return 0;
    error = errno;
    gl_kq_close(kq, 0);
    errno = error;
    return -1;
}

static inline int gl_kq_wait(gl_kq *kq, struct kevent *events, int n, long long delay_ns) {
#ifdef GMPLOOP_HAVE_LIBKQUEUE
    if (delay_ns) gl_kq_look_after_copies(kq);
    if (delay_ns > 1000000) delay_ns = (delay_ns + 999999) / 1000000 * 1000000;
#endif
    struct timespec t = { (time_t)(delay_ns / 1000000000), (long)(delay_ns % 1000000000) };
    n = kevent(kq->fd, NULL, 0, events, n, delay_ns < 0 ? NULL : &t);
#ifdef GMPLOOP_HAVE_LIBKQUEUE
    for (int i = 0; i < n; i++)
        if (events[i].filter == EVFILT_WRITE && (int)events[i].ident < kq->ntwins)
            events[i].ident = kq->twins[events[i].ident].original - 1;
#endif
    return n;
}

#endif
