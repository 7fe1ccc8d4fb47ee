/* epoll(7) and eventfd(2), or what stands for them on other systems than Linux: calls that fail. */
#ifndef GMPLOOP_EPOLL_H
#define GMPLOOP_EPOLL_H

#include <errno.h>
#include <stdint.h>

#if defined(__linux__)
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#define GL_HAVE_EPOLL 1
#else
#define GL_HAVE_EPOLL 0
typedef union { unsigned long long u64; } epoll_data_t;
struct epoll_event { uint32_t events; epoll_data_t data; };
enum { EPOLLIN, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLL_CLOEXEC, EFD_CLOEXEC, EFD_NONBLOCK };
#define EPOLLET (1u << 31)

static inline int gl_no_epoll(void) { errno = ENOSYS; return -1; }
#define epoll_create1(flags) ((void)(flags), gl_no_epoll())
#define epoll_ctl(epfd, op, fd, event) ((void)(epfd), (void)(op), (void)(fd), (void)(event), gl_no_epoll())
#define epoll_wait(epfd, events, n, ms) ((void)(epfd), (void)(events), (void)(n), (void)(ms), gl_no_epoll())
#define eventfd(count, flags) ((void)(count), (void)(flags), gl_no_epoll())
#endif

#endif
