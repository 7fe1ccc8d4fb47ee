/* The echo server in C that the rows are held against: one thread, epoll, edge-triggered, one registration for each
 * connection, read straight into a shared buffer and written straight back.
 *
 *   echo_epoll [-n tcp|unix|udp|tls] [-u PATH] [-c CERTIFICATE -k KEY] [-C CPU]
 *
 * It listens at PATH or on a free port of 127.0.0.1, and prints {"port": N}. TLS (-DWITH_TLS) is OpenSSL's own, with
 * read-ahead, level-triggered: one receive and one send for a message.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#ifdef WITH_TLS
#include <openssl/ssl.h>
#else
typedef void SSL, SSL_CTX;
#endif

enum { BUFFER = 1 << 18, EVENTS = 512 };

struct conn {
    int fd;
    SSL *tls;                 /* NULL: plain */
    char *rest;               /* what the socket did not take yet; nothing is read while there is some */
    size_t rest_size, rest_sent;
};

static char buffer[BUFFER];
static int epoll, listener;
static SSL_CTX *context;

static void fail(const char *what) {
    perror(what);
    exit(2);
}

#ifdef WITH_TLS
static ssize_t tls_result(struct conn *c, int result) {
    if (result > 0) return result;
    int error = SSL_get_error(c->tls, result);
    errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
    return error == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}

static void open_tls(const char *certificate, const char *key) {
    signal(SIGPIPE, SIG_IGN);
    context = SSL_CTX_new(TLS_server_method());
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, 1 << 16);
    if (SSL_CTX_use_certificate_file(context, certificate, SSL_FILETYPE_PEM) != 1
        || SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1)
        fail("certificate or key");
}

static SSL *new_tls(int fd) {
    SSL *tls = SSL_new(context);
    SSL_set_fd(tls, fd);
    SSL_set_accept_state(tls);
    return tls;
}

static void drop_tls(SSL *tls) { SSL_free(tls); }
static ssize_t io_recv(struct conn *c) {
    return c->tls ? tls_result(c, SSL_read(c->tls, buffer, BUFFER)) : recv(c->fd, buffer, BUFFER, 0);
}
static ssize_t io_send(struct conn *c, const char *data, size_t size) {
    return c->tls ? tls_result(c, SSL_write(c->tls, data, size)) : send(c->fd, data, size, MSG_NOSIGNAL);
}
#else
static void open_tls(const char *certificate, const char *key) {
    (void)certificate, (void)key;
    errno = ENOSYS;
    fail("compiled without TLS");
}
static SSL *new_tls(int fd) { (void)fd; return NULL; }
static void drop_tls(SSL *tls) { (void)tls; }
static ssize_t io_recv(struct conn *c) { return recv(c->fd, buffer, BUFFER, 0); }
static ssize_t io_send(struct conn *c, const char *data, size_t size) {
    return send(c->fd, data, size, MSG_NOSIGNAL);
}
#endif

static void watch(struct conn *c, uint32_t events, int operation) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (epoll_ctl(epoll, operation, c->fd, &event)) fail("epoll_ctl");
}

static void accept_all(void) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));     /* fails for Unix sockets: no matter */
        struct conn *c = calloc(1, sizeof *c);
        c->fd = fd;
        if (context) c->tls = new_tls(fd);
        watch(c, context ? EPOLLIN : EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, EPOLL_CTL_ADD);
    }
    if (errno != EAGAIN && errno != ECONNABORTED) fail("accept");
}

static void drop(struct conn *c) {
    if (c->tls) drop_tls(c->tls);
    close(c->fd);
    free(c->rest);
    free(c);
}

/* Each returns 0 when the connection has ended. */
static int flush_rest(struct conn *c) {
    while (c->rest) {
        ssize_t n = io_send(c, c->rest + c->rest_sent, c->rest_size - c->rest_sent);
        if (n < 0) return errno == EAGAIN;
        c->rest_sent += n;
        if (c->rest_sent == c->rest_size) {
            free(c->rest), c->rest = NULL;
            if (c->tls) watch(c, EPOLLIN, EPOLL_CTL_MOD);
        }
    }
    return 1;
}

static int echo(struct conn *c, int until_end) {
    while (!c->rest) {
        ssize_t n = io_recv(c);
        if (n <= 0) return n < 0 && errno == EAGAIN;
        ssize_t sent = 0;
        do {                                       /* OpenSSL takes one record at a time */
            ssize_t more = io_send(c, buffer + sent, n - sent);
            if (more < 0 && errno != EAGAIN) return 0;
            if (more < 0) break;
            sent += more;
        } while (c->tls && sent < n);
        if (sent < n) {
            c->rest_size = n - sent;
            c->rest_sent = 0;
            c->rest = memcpy(malloc(n - sent), buffer + sent, n - sent);
            if (c->tls) watch(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
        }
#ifdef WITH_TLS
        if (c->tls) {
            if (SSL_has_pending(c->tls)) continue;
            return 1;                              /* level-triggered */
        }
#endif
        if (n < BUFFER && !until_end) return 1;    /* a short read: the next bytes bring the next edge */
    }
    return 1;
}

static void echo_datagrams(void) {
    struct sockaddr_in from;
    socklen_t size = sizeof from;
    ssize_t n;
    while ((n = recvfrom(listener, buffer, BUFFER, 0, (struct sockaddr *)&from, &size)) >= 0)
        if (sendto(listener, buffer, n, 0, (struct sockaddr *)&from, size) < 0 && errno != EAGAIN) fail("sendto");
    if (errno != EAGAIN && errno != ECONNREFUSED) fail("recvfrom");
}

static int listen_inet(int type) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size)) fail("bind");
    if (type == SOCK_STREAM && listen(listener, 1024)) fail("listen");
    getsockname(listener, (struct sockaddr *)&address, &size);
    return ntohs(address.sin_port);
}

static int listen_unix(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1024))
        fail("listen");
    return 0;
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) fail("-C CPU");
}

static void raise_fd_limit(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv) {
    const char *net = "tcp", *path = "", *certificate = "", *key = "";
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int option; (option = getopt(argc, argv, "n:u:c:k:C:")) != -1;) {
        switch (option) {
        case 'n': net = optarg; break;
        case 'u': path = optarg; break;
        case 'c': certificate = optarg; break;
        case 'k': key = optarg; break;
        case 'C': pin(atoi(optarg)); break;
        default: return 2;
        }
    }
    raise_fd_limit();
    int udp = !strcmp(net, "udp");
    if (!strcmp(net, "tls")) open_tls(certificate, key);
    int port = !strcmp(net, "unix") ? listen_unix(path) : listen_inet(udp ? SOCK_DGRAM : SOCK_STREAM);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event)) fail("epoll");
    printf("{\"port\": %d}\n", port);
    fflush(stdout);

    for (;;) {
        struct epoll_event events[EVENTS];
        int n = epoll_wait(epoll, events, EVENTS, -1);
        if (n < 0 && errno != EINTR) fail("epoll_wait");
        for (int i = 0; i < n; i++) {
            struct conn *c = events[i].data.ptr;
            if (!c) udp ? echo_datagrams() : accept_all();
            else if (!flush_rest(c) || !echo(c, events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))) drop(c);
        }
    }
}
