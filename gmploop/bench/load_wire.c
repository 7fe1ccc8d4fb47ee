/* The sockets: TCP, Unix, UDP, and TLS where it was compiled in (-DWITH_TLS, OpenSSL).
 *
 * A connection to a loopback address is made by the kernel alone, as long as the listener's queue has room, so
 * connecting may block. A TLS handshake needs the server and is driven on by each send and receive.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "loadgen.h"

#ifdef WITH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
static SSL_CTX *context;

/* Non-blocking calls of OpenSSL, in the manner of send and recv. */
static ssize_t tls_result(struct conn *c, int result) {
    if (result > 0) return result;
    switch (SSL_get_error(c->tls, result)) {
    case SSL_ERROR_WANT_READ: case SSL_ERROR_WANT_WRITE: errno = EAGAIN; return -1;
    case SSL_ERROR_ZERO_RETURN: return 0;
    case SSL_ERROR_SYSCALL: if (!errno) return 0; return -1;
    default: die(CLOSED, "connection %d: TLS: %s", c->id, ERR_error_string(ERR_get_error(), NULL));
    }
}
#endif

void wire_init(void) {
    signal(SIGPIPE, SIG_IGN);       /* OpenSSL writes without MSG_NOSIGNAL */
    if (opt.net != TLS) return;
#ifdef WITH_TLS
    context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER
                              | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);     /* every handshake is a full one */
    SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF);
#else
    die(BAD_USE, "compiled without TLS");
#endif
}

static void connect_inet(struct conn *c) {
    static unsigned next_source;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(opt.port)}, from = {.sin_family = AF_INET};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (opt.mode == CONNECT) {
        /* short connections leave their ports in TIME_WAIT: many source addresses give ports enough */
        from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + next_source++ % 250);
        setsockopt(c->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &(int){1}, sizeof(int));
        if (bind(c->fd, (struct sockaddr *)&from, sizeof from)) die(NO_CONNECTION, "bind: %s", strerror(errno));
    }
    if (connect(c->fd, (struct sockaddr *)&to, sizeof to))
        die(NO_CONNECTION, "connection %d to port %d: %s", c->id, opt.port, strerror(errno));
    if (opt.net != UDP) setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

static void connect_unix(struct conn *c) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    strncpy(to.sun_path, opt.host_path, sizeof to.sun_path - 1);
    if (connect(c->fd, (struct sockaddr *)&to, sizeof to))
        die(NO_CONNECTION, "connection %d to %s: %s", c->id, opt.host_path, strerror(errno));
}

void wire_open(struct conn *c) {
    c->fd = socket(opt.net == UNIX ? AF_UNIX : AF_INET, (opt.net == UDP ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC, 0);
    if (c->fd < 0) die(NO_CONNECTION, "socket: %s", strerror(errno));
    if (opt.net == UNIX) connect_unix(c);
    else connect_inet(c);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
#ifdef WITH_TLS
    if (opt.net == TLS) {
        c->tls = SSL_new(context);
        SSL_set_fd(c->tls, c->fd);
        SSL_set_connect_state(c->tls);
    }
#endif
}

void wire_finish_opening(struct conn *c) {
#ifdef WITH_TLS
    while (opt.net == TLS && tls_result(c, SSL_do_handshake(c->tls)) < 0) {
        struct pollfd one = {.fd = c->fd, .events = POLLIN};
        if (errno != EAGAIN) die(NO_CONNECTION, "TLS handshake: %s", strerror(errno));
        if (poll(&one, 1, 10000) <= 0) die(STALLED, "no TLS handshake within 10 s");
    }
#else
    (void)c;
#endif
}

void wire_close(struct conn *c) {
#ifdef WITH_TLS
    if (c->tls) {
        SSL_shutdown(c->tls);
        SSL_free(c->tls);
        c->tls = NULL;
    }
#endif
    close(c->fd);
}

ssize_t wire_send(struct conn *c, const char *data, size_t size) {
#ifdef WITH_TLS
    if (opt.net == TLS) {
        errno = 0;
        ERR_clear_error();
        return tls_result(c, SSL_write(c->tls, data, size > 1 << 30 ? 1 << 30 : (int)size));
    }
#endif
    return send(c->fd, data, size, MSG_NOSIGNAL);
}

ssize_t wire_recv(struct conn *c, char *into, size_t room) {
#ifdef WITH_TLS
    if (opt.net == TLS) {
        errno = 0;
        ERR_clear_error();
        return tls_result(c, SSL_read(c->tls, into, (int)room));
    }
#endif
    return recv(c->fd, into, room, 0);
}
