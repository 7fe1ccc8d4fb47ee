/* The echo server in C on io_uring: one thread, one enter() a turn, multishot accept and receive into shared buffers,
 * sends straight from them, one at a time for each connection.
 *
 *   echo_uring [-C CPU]      listens on a free port of 127.0.0.1 and prints {"port": N}
 */
#define _GNU_SOURCE
#include "../core/uring.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { ENTRIES = 1024, BUFFERS = 1024, SIZE = 65536, ACCEPT = 13, ACCEPT_MULTISHOT = 1 };
enum { ACCEPTED, RECEIVED, SENT };                      /* in the upper half of user_data; the fd is in the lower */

struct part { struct part *next; int buffer; uint32_t size, sent; };
struct conn { struct part *first, *last; int sending, ended; };

static gl_uring ring;
static gl_bufs bufs;
static struct part parts[BUFFERS];                      /* by buffer */
static struct conn *conns;
static int listener;

static void fail(const char *what) {
    perror(what);
    exit(2);
}

static gl_sqe *entry(int opcode, int fd, uint64_t kind) {
    gl_sqe *e;
    while (!(e = gl_uring_sqe(&ring)))
        gl_uring_wait(&ring, gl_uring_publish(&ring), 0);
    e->opcode = (uint8_t)opcode;
    e->fd = fd;
    e->user_data = kind << 32 | (uint32_t)fd;
    return e;
}

static void receive(int fd) {
    gl_sqe *e = entry(GL_OP_RECV, fd, RECEIVED);
    e->flags = GL_SQE_BUFFER_SELECT;
    e->ioprio = GL_RECV_MULTISHOT;
}

static void send_next(int fd) {
    struct conn *c = &conns[fd];
    struct part *p = c->first;
    if (c->sending) return;
    if (!p) {
        if (c->ended) close(fd), c->ended = 0;
        return;
    }
    gl_sqe *e = entry(GL_OP_SEND, fd, SENT);
    e->addr = (uintptr_t)gl_bufs_at(&bufs, (unsigned)p->buffer) + p->sent;
    e->len = p->size - p->sent;
    e->op_flags = MSG_NOSIGNAL;
    c->sending = 1;
}

static void sent(int fd, int n) {
    struct conn *c = &conns[fd];
    struct part *p = c->first;
    c->sending = 0;
    if (n > 0 && (p->sent += (uint32_t)n) < p->size) return send_next(fd);
    do {                                                /* a broken connection drops all that is left */
        c->first = p->next;
        gl_bufs_return(&bufs, (unsigned)p->buffer);
    } while (n < 0 && (p = c->first));
    send_next(fd);
}

static void received(int fd, gl_cqe *e) {
    struct conn *c = &conns[fd];
    if (e->res > 0) {
        struct part *p = &parts[e->flags >> GL_CQE_BUFFER_SHIFT];
        *p = (struct part){NULL, (int)(e->flags >> GL_CQE_BUFFER_SHIFT), (uint32_t)e->res, 0};
        if (c->first) c->last->next = p;
        else c->first = p;
        c->last = p;
    }
    if (!(e->flags & GL_CQE_MORE)) {
        if (e->res > 0 || e->res == -ENOBUFS) receive(fd);
        else c->ended = 1;
    }
    send_next(fd);
}

static void accepted(gl_cqe *e) {
    if (e->res >= 0) {
        setsockopt(e->res, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        receive(e->res);
    }
    if (!(e->flags & GL_CQE_MORE)) entry(ACCEPT, listener, ACCEPTED)->ioprio = ACCEPT_MULTISHOT;
}

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int option; (option = getopt(argc, argv, "C:")) != -1;) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(option == 'C' ? atoi(optarg) : 0, &set);
        if (option != 'C' || sched_setaffinity(0, sizeof set, &set)) fail("-C CPU");
    }
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    conns = calloc(limit.rlim_max < 1 << 20 ? limit.rlim_max : 1 << 20, sizeof *conns);

    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1024)) fail("listen");
    getsockname(listener, (struct sockaddr *)&address, &size);
    int error = gl_uring_open_own(&ring, ENTRIES, 4 * ENTRIES);
    if (error >= 0) error = gl_bufs_open(&bufs, &ring, BUFFERS, SIZE);
    if (error < 0) errno = -error, fail("io_uring");
    entry(ACCEPT, listener, ACCEPTED)->ioprio = ACCEPT_MULTISHOT;
    printf("{\"port\": %d}\n", ntohs(address.sin_port));
    fflush(stdout);

    for (;;) {
        gl_cqe e;
        error = gl_uring_wait(&ring, gl_uring_publish(&ring), gl_uring_ready(&ring) ? 0 : -1);
        if (error < 0 && error != -EINTR) errno = -error, fail("io_uring_enter");
        while (gl_uring_next(&ring, &e)) {
            int fd = (int)(uint32_t)e.user_data;
            switch (e.user_data >> 32) {
            case ACCEPTED: accepted(&e); break;
            case RECEIVED: received(fd, &e); break;
            case SENT: sent(fd, e.res); break;
            }
        }
    }
}
