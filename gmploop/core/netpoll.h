/* The poller that all worlds share which move between threads: epoll(7), elsewhere kqueue(2), used by any thread.
 *
 * A token is fd | generation << 32; 0 is the eventfd that wakes. Watches are edge-triggered; those that must be
 * level-triggered are one-shot, and asked for again once their callback has run: otherwise an fd whose world is busy
 * would be told again and again.
 */
#ifndef GMPLOOP_NETPOLL_H
#define GMPLOOP_NETPOLL_H

#include "epoll.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { GL_NET_EVENTS = 128 };       /* Go's; what is ready beyond is told by the next poll */

typedef struct { int epfd, wakefd; } gl_net;

#if defined(__linux__)
#define GL_NET_NAME "epoll"

static inline void gl_net_close(gl_net *n) {
    if (n->epfd >= 0) close(n->epfd);
    if (n->wakefd >= 0) close(n->wakefd);
    n->epfd = n->wakefd = -1;
}

/* In a child of fork(), which has inherited the parent's descriptors. */
static inline void gl_net_forget(gl_net *n) { gl_net_close(n); }

static int gl_net_open(gl_net *n) {
    struct epoll_event ev;
    memset(&ev, 0, sizeof ev);
    n->wakefd = -1;
    n->epfd = epoll_create1(EPOLL_CLOEXEC);
    if (n->epfd < 0) return -1;
    n->wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ev.events = EPOLLIN | EPOLLET;
    if (n->wakefd < 0 || epoll_ctl(n->epfd, EPOLL_CTL_ADD, n->wakefd, &ev) < 0) {
        int e = errno;
        gl_net_close(n);
        errno = e;
        return -1;
    }
    return 0;
}

/* op: 0 forget, 1 watch, 2 watch otherwise. */
static int gl_net_control(gl_net *n, int op, int fd, uint32_t gen, uint32_t mask, int level) {
    struct epoll_event ev;
    int r;
    memset(&ev, 0, sizeof ev);
    ev.events = mask | (level ? EPOLLONESHOT : EPOLLET);
    ev.data.u64 = (uint64_t)(uint32_t)fd | (uint64_t)gen << 32;
    r = epoll_ctl(n->epfd, op == 0 ? EPOLL_CTL_DEL : op == 1 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &ev);
    if (r < 0 && op == 1 && errno == EEXIST) r = epoll_ctl(n->epfd, EPOLL_CTL_MOD, fd, &ev);
    else if (r < 0 && op == 2 && errno == ENOENT) r = epoll_ctl(n->epfd, EPOLL_CTL_ADD, fd, &ev);
    return op == 0 ? 0 : r;
}

static int gl_net_wait(gl_net *n, struct epoll_event *events, int64_t delay_ns) {
    if (delay_ns <= 0) return epoll_wait(n->epfd, events, GL_NET_EVENTS, delay_ns < 0 ? -1 : 0);
#ifdef SYS_epoll_pwait2
    static int have = 1;
    if (__atomic_load_n(&have, __ATOMIC_RELAXED)) {
        struct timespec t = { (time_t)(delay_ns / 1000000000), (long)(delay_ns % 1000000000) };
        int r = (int)syscall(SYS_epoll_pwait2, n->epfd, events, GL_NET_EVENTS, &t, NULL, 0);
        if (r >= 0 || (errno != ENOSYS && errno != EPERM)) return r;
        __atomic_store_n(&have, 0, __ATOMIC_RELAXED);
    }
#endif
    int64_t ms = (delay_ns + 999999) / 1000000;
    return epoll_wait(n->epfd, events, GL_NET_EVENTS, ms > 2147483647 ? 2147483647 : (int)ms);
}

static inline void gl_net_wake(gl_net *n) {
    uint64_t one = 1;
    if (n->wakefd >= 0 && write(n->wakefd, &one, 8) < 0) { /* its counter is full: it is awake */ }
}

#else
#include "kqueue.h"
#define GL_NET_NAME "kqueue"

static inline void gl_net_close(gl_net *n) {
    gl_kq kq = { n->epfd };
    gl_kq_close(&kq, 0);
    n->epfd = -1;
}

/* A kqueue is not inherited: its number is nobody's in a child, or somebody else's. */
static inline void gl_net_forget(gl_net *n) { n->epfd = -1; }

static int gl_net_open(gl_net *n) {
    gl_kq kq = { -1 };
    int r = gl_kq_open(&kq);
    n->epfd = kq.fd;
    n->wakefd = -1;
    return r;
}

static int gl_net_control(gl_net *n, int op, int fd, uint32_t gen, uint32_t mask, int level) {
    gl_kq kq = { n->epfd };
    int flags = EV_ADD | (level ? EV_ONESHOT : EV_CLEAR), r = 0;
    if (op == 0) mask = 0;
    if (!(mask & 1)) gl_kq_change(&kq, fd, EVFILT_READ, EV_DELETE, 0);      /* fails where it is not set */
    else if (gl_kq_change(&kq, fd, EVFILT_READ, flags, gen) < 0) r = -1;
    if (!(mask & 4)) gl_kq_change(&kq, fd, EVFILT_WRITE, EV_DELETE, 0);
    else if (gl_kq_change(&kq, fd, EVFILT_WRITE, flags, gen) < 0) r = -1;
    return r;
}

/* In epoll's form, with its bits: see poller.pxd, and poller_kqueue.pyx for what they mean here. */
static int gl_net_wait(gl_net *n, struct epoll_event *events, int64_t delay_ns) {
    struct kevent got[GL_NET_EVENTS];
    gl_kq kq = { n->epfd };
    int i, count = gl_kq_wait(&kq, got, GL_NET_EVENTS, delay_ns);
    for (i = 0; i < count; i++) {
        uint32_t bits = got[i].filter == EVFILT_WRITE ? 4 : (uint32_t)got[i].flags & EV_EOF ? 0x2001 : 1;
        events[i].events = bits;
        events[i].data.u64 = got[i].filter == EVFILT_USER ? 0
            : (uint64_t)(uint32_t)got[i].ident | (uint64_t)(uint32_t)(uintptr_t)got[i].udata << 32;
    }
    return count;
}

static inline void gl_net_wake(gl_net *n) {
    gl_kq kq = { n->epfd };
    if (kq.fd >= 0) gl_kq_wake(&kq);
}
#endif

#endif
