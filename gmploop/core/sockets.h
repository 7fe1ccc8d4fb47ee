/* System calls on sockets, where systems differ. */
#ifndef GMPLOOP_SOCKETS_H
#define GMPLOOP_SOCKETS_H

#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

static inline void gl_set_errno(int e) { errno = e; }

/* Whether the call that failed is to be tried again when the poller says so. */
static inline int gl_would_block(void) { return errno == EAGAIN || errno == EINTR; }

/* macOS: writing to a connection that is gone sends no signal. Elsewhere MSG_NOSIGNAL says so with each call. */
static inline void gl_no_sigpipe(int fd) {
#ifdef SO_NOSIGPIPE
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#else
    (void)fd;
#endif
}

static inline void gl_nodelay(int fd) {
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* A connection, not blocking and closed by exec. */
static inline int gl_accept(int fd, struct sockaddr *a, socklen_t *size) {
#if defined(SOCK_NONBLOCK) && defined(SOCK_CLOEXEC)
    return accept4(fd, a, size, SOCK_NONBLOCK | SOCK_CLOEXEC);
#else
    int conn = accept(fd, a, size);
    if (conn >= 0) {
        fcntl(conn, F_SETFD, FD_CLOEXEC);
        fcntl(conn, F_SETFL, fcntl(conn, F_GETFL) | O_NONBLOCK);
    }
    return conn;
#endif
}

/* recv() of up to `size` bytes into a bytes object that is cut to what came: for much data a copy less than by way of a
 * buffer that stays. *n and errno are recv()'s. NULL: no memory, and an exception is set. With the GIL. */
static inline PyObject *gl_recv_bytes(int fd, Py_ssize_t size, Py_ssize_t *n) {
    PyObject *data = PyBytes_FromStringAndSize(NULL, size);
    if (data == NULL) return NULL;
    *n = recv(fd, PyBytes_AS_STRING(data), (size_t)size, MSG_DONTWAIT);
    int error = errno;
    _PyBytes_Resize(&data, *n > 0 ? *n : 0);
    errno = error;
    return data;
}

/* The length of the peer's address, which is put at `a`; also if the peer is gone again, where the system tells. Else 0,
 * and nothing but zeros there. */
static inline socklen_t gl_peer(int fd, int family, struct sockaddr_storage *a) {
    socklen_t size = sizeof *a;
    if (getpeername(fd, (struct sockaddr *)a, &size) == 0) return size;
#ifdef SO_PEERNAME
    size = family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (family != AF_UNIX && getsockopt(fd, SOL_SOCKET, SO_PEERNAME, a, &size) == 0) return size;
#endif
    (void)family;
    memset(a, 0, sizeof *a);
    return 0;
}

#endif
