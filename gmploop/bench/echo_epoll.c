/* The echo server in C that the rows are held against: one thread, epoll, edge-triggered, one registration for each
 * connection, read straight into a shared buffer and written straight back.
 *
 *   echo_epoll [-C CPU]      listens on a free port of 127.0.0.1 and prints {"port": N}
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
#include <unistd.h>

enum { BUFFER = 1 << 18, EVENTS = 512 };

struct conn {
    int fd;
    char *rest;               /* what the socket did not take yet; nothing is read while there is some */
    size_t rest_size, rest_sent;
};

static char buffer[BUFFER];
static int epoll, listener;

static void fail(const char *what) {
    perror(what);
    exit(2);
}

static void accept_all(void) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        struct conn *c = calloc(1, sizeof *c);
        c->fd = fd;
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl");
    }
    if (errno != EAGAIN && errno != ECONNABORTED) fail("accept");
}

static void drop(struct conn *c) {
    close(c->fd);
    free(c->rest);
    free(c);
}

/* Each returns 0 when the connection has ended. */
static int flush_rest(struct conn *c) {
    while (c->rest) {
        ssize_t n = send(c->fd, c->rest + c->rest_sent, c->rest_size - c->rest_sent, MSG_NOSIGNAL);
        if (n < 0) return errno == EAGAIN;
        c->rest_sent += n;
        if (c->rest_sent == c->rest_size) free(c->rest), c->rest = NULL;
    }
    return 1;
}

static int echo(struct conn *c, int until_end) {
    while (!c->rest) {
        ssize_t n = recv(c->fd, buffer, BUFFER, 0);
        if (n <= 0) return n < 0 && errno == EAGAIN;
        ssize_t sent = send(c->fd, buffer, n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) return 0;
        if (sent < 0) sent = 0;
        if (sent < n) {
            c->rest_size = n - sent;
            c->rest_sent = 0;
            c->rest = memcpy(malloc(n - sent), buffer + sent, n - sent);
        }
        if (n < BUFFER && !until_end) return 1;    /* a short read: the next bytes bring the next edge */
    }
    return 1;
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

    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t size = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1024)) fail("listen");
    getsockname(listener, (struct sockaddr *)&address, &size);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event)) fail("epoll");
    printf("{\"port\": %d}\n", ntohs(address.sin_port));
    fflush(stdout);

    for (;;) {
        struct epoll_event events[EVENTS];
        int n = epoll_wait(epoll, events, EVENTS, -1);
        if (n < 0 && errno != EINTR) fail("epoll_wait");
        for (int i = 0; i < n; i++) {
            struct conn *c = events[i].data.ptr;
            if (!c) accept_all();
            else if (!flush_rest(c)
                     || !echo(c, events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)))
                drop(c);
        }
    }
}
