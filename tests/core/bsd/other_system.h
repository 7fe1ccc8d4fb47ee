/* Included before all else: what Linux has and a BSD or macOS lacks is gone, so that a use of it does not compile.
 *
 * The system's own headers come first, since they use some of it. Then macros go and functions are poisoned. Headers that
 * only Linux has are shadowed by the folder's own, which end the compilation.
 */
#define MSG_NOSIGNAL linux_msg_nosignal         /* constants of an enum, too */
#define MSG_ERRQUEUE linux_msg_errqueue
#define SOCK_CLOEXEC linux_sock_cloexec
#define SOCK_NONBLOCK linux_sock_nonblock
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#undef MSG_NOSIGNAL
#undef MSG_ERRQUEUE
#undef MSG_CMSG_CLOEXEC
#undef SOCK_CLOEXEC
#undef SOCK_NONBLOCK
#undef O_DIRECT
#undef O_PATH
#undef O_TMPFILE
#undef O_NOATIME
#undef ETIME
#undef EBADFD
#undef CLOCK_BOOTTIME
#undef CLOCK_MONOTONIC_COARSE
#undef CLOCK_MONOTONIC_RAW
#undef SO_REUSEPORT
#undef TCP_CORK
#undef TCP_QUICKACK
#undef AT_EMPTY_PATH
#undef RWF_NOWAIT

#pragma GCC poison accept4 EPOLLRDHUP epoll_pwait2 signalfd
#pragma GCC poison prctl gettid tgkill pidfd_open syscall statx preadv2 pwritev2 pipe2 dup3 ppoll
#pragma GCC poison sched_getaffinity sched_setaffinity recvmmsg sendmmsg mallopt futex splice fallocate64 openat2

#undef __linux__
#undef __GLIBC__
#define __DragonFly__ 6     /* the compiler's own headers look for FreeBSD's */
