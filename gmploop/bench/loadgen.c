/* Closed-loop load generator for the echo and HTTP rows: every connection has exactly one request under way, and
 * sends the next as soon as the reply has come and been checked.
 *
 *   loadgen -m echo|http -p PORT [-c CONNECTIONS] [-s SIZE] [-b BODY] [-t SECONDS] [-w WARMUP] [-P PID] [-C CPU]
 *
 * echo: each message is a window of SIZE bytes into one block of random bytes; where the window starts changes with
 *       the connection and the request, so a lost, doubled, stale or misrouted byte is found by comparing all bytes.
 * http: keep-alive GET /; the reply must be status 200 with exactly BODY behind a Content-Length.
 *
 * After WARMUP the figures are reset, and SECONDS are measured. The CPU time of process PID (the server) is read at
 * both ends of exactly that window. One line of JSON goes to stdout.
 * Exit status: 0 good, 2 usage or system error, 3 no connection, 4 wrong bytes, 5 closed by the server, 6 no progress.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BAD_USE = 2, NO_CONNECTION, WRONG_BYTES, CLOSED, STALLED };
enum { SLACK = 4096, RECV_SIZE = 1 << 18, HTTP_MAX = 1 << 14, EVENTS = 512, STALL_S = 10 };

struct conn {
    int fd, id;
    uint64_t seq, start_ns;
    const char *out;          /* the request, inside `pattern` or `http_request` */
    size_t sent, got;
    char *reply;              /* http only: the reply so far */
};

static int http, n_conns = 50, busy;
static size_t out_size = 1024;
static const char *body = "";
static char *pattern, *scratch;
static const char http_request[] = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
static int stopping;
static uint64_t completed, completed_in_window, last_progress_ns;

/* Latency histogram: 64 steps for each power of two, so a value is off by 0.8 % at most. */
static uint64_t histogram[64 * 60];

static void die(int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(status);
}

static uint64_t clock_ns(clockid_t clock) {
    struct timespec ts;
    if (clock_gettime(clock, &ts)) die(CLOSED, "the server process is gone");
    return (uint64_t)ts.tv_sec * 1000000000u + ts.tv_nsec;
}

static void record(uint64_t ns) {
    unsigned index = ns;
    if (ns >= 64) {
        int top = 63 - __builtin_clzll(ns);
        index = (top - 5) * 64 + (unsigned)((ns >> (top - 6)) & 63);
    }
    histogram[index]++;
}

static double percentile_us(double share) {
    uint64_t left = share * completed_in_window;
    for (unsigned i = 0; i < sizeof histogram / sizeof *histogram; i++) {
        if (histogram[i] > left) {
            if (i < 64) return i / 1e3;
            return (64.5 + i % 64) * (double)(1ull << (i / 64 - 1)) / 1e3;
        }
        left -= histogram[i];
    }
    return 0;
}

static void send_more(struct conn *c) {
    while (c->sent < out_size) {
        ssize_t n = send(c->fd, c->out + c->sent, out_size - c->sent, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EAGAIN) return;
            if (errno == EINTR) continue;
            die(CLOSED, "connection %d: send: %s", c->id, strerror(errno));
        }
        c->sent += n;
    }
}

static void start_request(struct conn *c, uint64_t now) {
    c->out = http ? http_request : pattern + ((c->id * 61 + c->seq * 17) % SLACK);
    c->seq++;
    c->sent = c->got = 0;
    c->start_ns = now;
    send_more(c);
}

static void reply_is_complete(struct conn *c) {
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    completed++;
    completed_in_window++;
    record(now - c->start_ns);
    last_progress_ns = now;
    if (stopping) busy--;
    else start_request(c, now);
}

/* Returns 1 when the whole reply is there. `got` counts what was received, the new bytes included. */
static int check_echo(struct conn *c, const char *data, size_t n) {
    if (c->got > c->sent) die(WRONG_BYTES, "connection %d: more bytes came back than were sent", c->id);
    if (memcmp(data, c->out + c->got - n, n))
        die(WRONG_BYTES, "connection %d, request %llu: the bytes that came back differ", c->id,
            (unsigned long long)c->seq);
    return c->got == out_size;
}

static int check_http(struct conn *c) {
    c->reply[c->got] = 0;
    char *head_end = strstr(c->reply, "\r\n\r\n");
    if (!head_end) return 0;
    if (strncmp(c->reply, "HTTP/1.1 200 ", 13))
        die(WRONG_BYTES, "connection %d: not a 200 reply: %.40s", c->id, c->reply);
    char *length = strcasestr(c->reply, "\r\ncontent-length:");
    if (!length || length > head_end) die(WRONG_BYTES, "connection %d: no Content-Length", c->id);
    size_t want = strtoul(length + 17, NULL, 10), have = c->got - (head_end + 4 - c->reply);
    if (want != strlen(body) || have > want || memcmp(head_end + 4, body, have))
        die(WRONG_BYTES, "connection %d: the body differs: %.60s", c->id, head_end + 4);
    return have == want;
}

static void receive(struct conn *c) {
    for (;;) {
        char *into = http ? c->reply + c->got : scratch;
        size_t room = http ? HTTP_MAX - 1 - c->got : RECV_SIZE;
        if (!room) die(WRONG_BYTES, "connection %d: reply is too long", c->id);
        ssize_t n = recv(c->fd, into, room, 0);
        if (n < 0) {
            if (errno == EAGAIN) return;
            if (errno == EINTR) continue;
            die(CLOSED, "connection %d: recv: %s", c->id, strerror(errno));
        }
        if (n == 0) die(CLOSED, "connection %d: closed by the server", c->id);
        c->got += n;
        if (http ? check_http(c) : check_echo(c, into, n)) reply_is_complete(c);
        /* edge-triggered: after a short read the kernel tells of whatever comes next */
        if ((size_t)n < room) return;
    }
}

static void raise_fd_limit(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static struct conn *connect_all(int port, int epoll) {
    struct conn *conns = calloc(n_conns, sizeof *conns);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < n_conns; i++) {
        struct conn *c = &conns[i];
        c->id = i;
        c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address))
            die(NO_CONNECTION, "connection %d to port %d: %s", i, port, strerror(errno));
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        if (http) c->reply = malloc(HTTP_MAX);
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event)) die(BAD_USE, "epoll_ctl: %s", strerror(errno));
    }
    return conns;
}

static void turn(int epoll) {
    struct epoll_event events[EVENTS];
    int n = epoll_wait(epoll, events, EVENTS, 100);
    if (n < 0 && errno != EINTR) die(BAD_USE, "epoll_wait: %s", strerror(errno));
    for (int i = 0; i < n; i++) {
        struct conn *c = events[i].data.ptr;
        if (c->sent < out_size && events[i].events & EPOLLOUT) send_more(c);
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c);
    }
    if (n <= 0 && clock_ns(CLOCK_MONOTONIC) - last_progress_ns > STALL_S * 1000000000ull)
        die(STALLED, "no reply for %d s; %llu requests were answered before", STALL_S,
            (unsigned long long)completed);
}

struct cpu { uint64_t total_ns; unsigned long long user_ticks, sys_ticks; };

/* The total comes from the process's CPU clock (exact, all threads, those that ended too); how it splits into user
 * and system comes from /proc in clock ticks. */
static struct cpu server_cpu(int pid) {
    struct cpu cpu = {0};
    if (!pid) return cpu;
    clockid_t clock;
    if (clock_getcpuclockid(pid, &clock)) die(CLOSED, "the server process is gone");
    cpu.total_ns = clock_ns(clock);
    char text[1024];
    snprintf(text, sizeof text, "/proc/%d/stat", pid);
    FILE *file = fopen(text, "r");
    if (!file) die(CLOSED, "the server process is gone");
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *after_name = strrchr(text, ')');   /* the name may hold spaces and parentheses */
    if (!after_name || sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu",
                              &cpu.user_ticks, &cpu.sys_ticks) != 2)
        die(BAD_USE, "cannot read /proc/%d/stat", pid);
    return cpu;
}

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) die(BAD_USE, "cannot pin to CPU %d: %s", cpu, strerror(errno));
}

static void make_pattern(void) {
    pattern = malloc(out_size + SLACK);
    scratch = malloc(RECV_SIZE);
    if (!pattern || !scratch) die(BAD_USE, "out of memory");
    uint64_t x = 88172645463325252ull;
    for (size_t i = 0; i < out_size + SLACK; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        pattern[i] = (char)x;
    }
}

int main(int argc, char **argv) {
    double seconds = 1, warmup = 0.3;
    int port = 0, pid = 0, option;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while ((option = getopt(argc, argv, "m:p:c:s:b:t:w:P:C:")) != -1) {
        switch (option) {
        case 'm': http = !strcmp(optarg, "http"); break;
        case 'p': port = atoi(optarg); break;
        case 'c': n_conns = atoi(optarg); break;
        case 's': out_size = strtoul(optarg, NULL, 10); break;
        case 'b': body = optarg; break;
        case 't': seconds = atof(optarg); break;
        case 'w': warmup = atof(optarg); break;
        case 'P': pid = atoi(optarg); break;
        case 'C': pin(atoi(optarg)); break;
        default: return BAD_USE;
        }
    }
    if (port <= 0 || n_conns <= 0 || !out_size || seconds <= 0) die(BAD_USE, "bad arguments");
    if (http) out_size = sizeof http_request - 1;
    make_pattern();
    raise_fd_limit();
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct conn *conns = connect_all(port, epoll);
    last_progress_ns = clock_ns(CLOCK_MONOTONIC);
    for (int i = 0; i < n_conns; i++) start_request(&conns[i], clock_ns(CLOCK_MONOTONIC));

    uint64_t warm = last_progress_ns + warmup * 1e9;
    while (clock_ns(CLOCK_MONOTONIC) < warm) turn(epoll);
    memset(histogram, 0, sizeof histogram);
    completed_in_window = 0;
    struct cpu before = server_cpu(pid);
    uint64_t start = clock_ns(CLOCK_MONOTONIC), end = start + seconds * 1e9, now;
    do turn(epoll); while ((now = clock_ns(CLOCK_MONOTONIC)) < end);
    struct cpu after = server_cpu(pid);
    uint64_t requests = completed_in_window;
    if (!requests) die(STALLED, "no reply within the measured %.2f s", seconds);
    double p50 = percentile_us(0.5), p99 = percentile_us(0.99), p999 = percentile_us(0.999);
    double most = percentile_us(1 - 1e-12);

    /* let the replies under way arrive: they are checked too, and the server sees an orderly end */
    stopping = 1;
    busy = n_conns;
    while (busy) turn(epoll);
    printf("{\"requests\": %llu, \"requests_total\": %llu, \"seconds\": %.6f, \"cpu_ns\": %llu, \"user_ticks\": %llu,"
           " \"sys_ticks\": %llu, \"p50_us\": %.3f, \"p99_us\": %.3f, \"p999_us\": %.3f, \"max_us\": %.3f}\n",
           (unsigned long long)requests, (unsigned long long)completed, (now - start) / 1e9,
           (unsigned long long)(after.total_ns - before.total_ns), after.user_ticks - before.user_ticks,
           after.sys_ticks - before.sys_ticks, p50, p99, p999, most);
    return 0;
}
