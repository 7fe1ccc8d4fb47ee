/* Load generator for the rows that measure a server: every connection has at most one request under way, and every
 * reply is checked (load_check.c).
 *
 *   loadgen -m echo|http|ws|connect|hold [-n tcp|unix|udp|tls] -p PORT | -u PATH [-c CONNECTIONS] [-s SIZE]
 *           [-b BODY] [-r RATE] [-t SECONDS] [-w WARMUP] [-P PID] [-C CPU]
 *
 * echo:    what is sent comes back.          http: keep-alive GET /; a 200 with exactly BODY behind a Content-Length.
 * ws:      an echo of WebSocket messages.
 * connect: an echo, each on a connection of its own: connect, (TLS handshake,) send, receive, close.
 * hold:    one echo on each connection, then {"held": N} is printed and all stay open until standard input ends.
 *
 * Without -r a connection sends its next request as soon as the reply has come. With -r requests are due at fixed
 * times, and latency is counted from when one was due, also where no connection was free then.
 * After WARMUP the figures are reset, and SECONDS are measured. The CPU time of process PID (the server) is read at
 * both ends of exactly that window. One line of JSON goes to stdout.
 * Exit status: 0 good, 2 usage or system error, 3 no connection, 4 wrong bytes, 5 closed by the server, 6 no progress.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "loadgen.h"

enum { EVENTS = 512, STALL_S = 10, ACCEPT_BATCH = 128, RESEND_NS = 200000000 };

struct options opt = {.conns = 50, .size = 1024, .body = ""};
static struct conn *conns;
static int epoll, stopping, busy;
static int *spare, spares;              /* -r: the connections without a request */
static uint64_t completed, completed_in_window, last_progress_ns, resent;
static uint64_t schedule_ns, due;       /* -r: when the schedule began, and how many requests were made of it */

void die(int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(status);
}

uint64_t clock_ns(clockid_t clock) {
    struct timespec ts;
    if (clock_gettime(clock, &ts)) die(CLOSED, "the server process is gone");
    return (uint64_t)ts.tv_sec * 1000000000u + ts.tv_nsec;
}

static uint64_t now_ns(void) {
    return clock_ns(CLOCK_MONOTONIC);
}

static void send_more(struct conn *c) {
    while (c->sent < out_size) {
        ssize_t n = wire_send(c, c->out + c->sent, out_size - c->sent);
        if (n <= 0) {
            if (n < 0 && errno == EAGAIN) return;
            if (n < 0 && errno == EINTR) continue;
            die(CLOSED, "connection %d: send: %s", c->id, n ? strerror(errno) : "closed by the server");
        }
        c->sent += n;
    }
}

static void open_conn(struct conn *c) {
    wire_open(c);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event)) die(BAD_USE, "epoll_ctl: %s", strerror(errno));
}

static void start_request(struct conn *c, uint64_t start_ns) {
    c->start_ns = start_ns;
    c->busy = 1;
    c->resent = 0;
    busy++;
    if (opt.mode == CONNECT) open_conn(c);
    make_request(c);
    send_more(c);
}

static void reply_is_complete(struct conn *c) {
    uint64_t now = now_ns();
    completed++;
    completed_in_window++;
    stat_record(now - c->start_ns);
    last_progress_ns = now;
    c->busy = 0;
    busy--;
    if (opt.mode == CONNECT) wire_close(c);
    if (opt.rate) spare[spares++] = c->id;
    else if (!stopping) start_request(c, now);
}

static void receive(struct conn *c) {
    for (;;) {
        size_t room;
        char *into = room_for(c, &room);
        ssize_t n = wire_recv(c, into, room);
        if (n < 0) {
            if (errno == EAGAIN) return;
            if (errno == EINTR) continue;
            die(CLOSED, "connection %d: recv: %s", c->id, strerror(errno));
        }
        if (n == 0) die(CLOSED, "connection %d: closed by the server", c->id);
        if (!c->busy) {
            if (opt.net == UDP) continue;           /* a late reply to a datagram that was sent again */
            die(WRONG_BYTES, "connection %d: more bytes came back than were sent", c->id);
        }
        if (check_reply(c, into, n)) {
            reply_is_complete(c);
            if (opt.mode == CONNECT) return;        /* the next request has a socket of its own */
        }
        /* edge-triggered: after a short read the kernel tells of whatever comes next (a TLS record or a datagram is
         * no short read) */
        if ((size_t)n < room && (opt.net == TCP || opt.net == UNIX)) return;
    }
}

/* A datagram may get lost; the request then goes on being timed, and is sent again. */
static void resend_lost(uint64_t now) {
    static uint64_t last_look;
    if (opt.net != UDP || now - last_look < RESEND_NS / 2) return;
    last_look = now;
    for (int i = 0; i < opt.conns; i++) {
        struct conn *c = &conns[i];
        if (c->busy && now - c->start_ns > RESEND_NS * (c->resent + 1ull)) {
            c->resent++;
            resent++;
            c->sent = 0;
            send_more(c);
        }
    }
}

/* Start what is due; returns the milliseconds that epoll may wait. Within the last one it looks again and again. */
static int start_due(void) {
    if (!opt.rate || stopping) return 100;
    uint64_t next;
    while ((next = schedule_ns + (uint64_t)(due * 1e9 / opt.rate)) <= now_ns() && spares) {
        due++;
        start_request(&conns[spare[--spares]], next);
    }
    uint64_t now = now_ns();
    return !spares ? 100 : next < now + 2000000 ? 0 : (int)((next - now) / 1000000) - 1;
}

static void turn(void) {
    struct epoll_event events[EVENTS];
    int n = epoll_wait(epoll, events, EVENTS, start_due());
    if (n < 0 && errno != EINTR) die(BAD_USE, "epoll_wait: %s", strerror(errno));
    for (int i = 0; i < n; i++) {
        struct conn *c = events[i].data.ptr;
        if (c->busy && c->sent < out_size && (opt.net == TLS || events[i].events & EPOLLOUT)) send_more(c);
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
    }
    uint64_t now = now_ns();
    resend_lost(now);
    if (n <= 0 && busy && now - last_progress_ns > STALL_S * 1000000000ull)
        die(STALLED, "no reply for %d s; %llu requests were answered before", STALL_S, (unsigned long long)completed);
}

/* One exchange, to know that the server has taken all connections that were made so far. */
static void wait_for_server(struct conn *c) {
    stopping = 1;
    last_progress_ns = now_ns();
    start_request(c, last_progress_ns);
    while (busy) turn();
    stopping = 0;
}

static void connect_all(void) {
    conns = calloc(opt.conns, sizeof *conns);
    spare = calloc(opt.conns, sizeof *spare);
    for (int i = 0; i < opt.conns; i++) {
        conns[i].id = i;
        if (opt.mode != CONNECT) {
            open_conn(&conns[i]);
            wire_finish_opening(&conns[i]);
            if (opt.mode == WS) ws_upgrade(&conns[i]);
            if (opt.mode == HOLD || (opt.net != UDP && i % ACCEPT_BATCH == ACCEPT_BATCH - 1))
                wait_for_server(&conns[i]);
        }
    }
    if (opt.rate) for (spares = 0; spares < opt.conns; spares++) spare[spares] = spares;
}

static void hold(void) {
    printf("{\"held\": %d}\n", opt.conns);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
}

static void raise_fd_limit(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) die(BAD_USE, "cannot pin to CPU %d: %s", cpu, strerror(errno));
}

static int one_of(const char *text, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (!strcmp(text, names[i])) return i;
    die(BAD_USE, "no such mode or net: %s", text);
}

static void measure(double warmup, double seconds, int pid) {
    schedule_ns = last_progress_ns = now_ns();
    completed = 0;
    for (int i = 0; !opt.rate && i < opt.conns; i++) start_request(&conns[i], now_ns());
    uint64_t warm = last_progress_ns + warmup * 1e9;
    while (now_ns() < warm) turn();
    stat_reset();
    completed_in_window = resent = 0;
    struct cpu before = server_cpu(pid);
    uint64_t start = now_ns(), end = start + seconds * 1e9, now;
    do turn(); while ((now = now_ns()) < end);
    struct cpu after = server_cpu(pid);
    uint64_t requests = completed_in_window, lost = resent;
    if (!requests) die(STALLED, "no reply within the measured %.2f s", seconds);
    double p50 = stat_percentile_us(0.5), p99 = stat_percentile_us(0.99), p999 = stat_percentile_us(0.999);
    double most = stat_percentile_us(1 - 1e-12);

    /* let the replies under way arrive: they are checked too, and the server sees an orderly end */
    stopping = 1;
    while (busy) turn();
    printf("{\"requests\": %llu, \"requests_total\": %llu, \"seconds\": %.6f, \"cpu_ns\": %llu, \"user_ticks\": %llu,"
           " \"sys_ticks\": %llu, \"p50_us\": %.3f, \"p99_us\": %.3f, \"p999_us\": %.3f, \"max_us\": %.3f,"
           " \"resent\": %llu}\n",
           (unsigned long long)requests, (unsigned long long)completed, (now - start) / 1e9,
           (unsigned long long)(after.total_ns - before.total_ns), after.user_ticks - before.user_ticks,
           after.sys_ticks - before.sys_ticks, p50, p99, p999, most, (unsigned long long)lost);
}

int main(int argc, char **argv) {
    static const char *const modes[] = {"echo", "http", "ws", "connect", "hold", NULL};
    static const char *const nets[] = {"tcp", "unix", "udp", "tls", NULL};
    double seconds = 1, warmup = 0.3;
    int pid = 0, option;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while ((option = getopt(argc, argv, "m:n:p:u:c:s:b:r:t:w:P:C:")) != -1) {
        switch (option) {
        case 'm': opt.mode = one_of(optarg, modes); break;
        case 'n': opt.net = one_of(optarg, nets); break;
        case 'p': opt.port = atoi(optarg); break;
        case 'u': opt.host_path = optarg; break;
        case 'c': opt.conns = atoi(optarg); break;
        case 's': opt.size = strtoul(optarg, NULL, 10); break;
        case 'b': opt.body = optarg; break;
        case 'r': opt.rate = atof(optarg); break;
        case 't': seconds = atof(optarg); break;
        case 'w': warmup = atof(optarg); break;
        case 'P': pid = atoi(optarg); break;
        case 'C': pin(atoi(optarg)); break;
        default: return BAD_USE;
        }
    }
    if ((opt.net == UNIX ? !opt.host_path : opt.port <= 0) || opt.conns <= 0 || !opt.size || seconds <= 0
        || opt.rate < 0)
        die(BAD_USE, "bad arguments");
    raise_fd_limit();
    wire_init();
    check_init();
    epoll = epoll_create1(EPOLL_CLOEXEC);
    connect_all();
    if (opt.mode == HOLD) hold();
    else measure(warmup, seconds, pid);
    return 0;
}
