/* What the parts of the load generator share: loadgen.c holds the clockwork, load_wire.c the sockets, load_check.c
 * requests and the checking of replies, load_stat.c latencies and the server's CPU time. */
#ifndef LOADGEN_H
#define LOADGEN_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { BAD_USE = 2, NO_CONNECTION, WRONG_BYTES, CLOSED, STALLED };
enum mode { ECHO, HTTP, WS, CONNECT, HOLD };
enum net { TCP, UNIX, UDP, TLS };

struct conn {
    int fd, id;
    uint64_t seq, start_ns;
    const char *window;       /* the payload, inside the pattern */
    const char *out;          /* the request: the window itself, the HTTP request, or `frame` */
    size_t sent, got;
    char *reply;              /* http only: the reply so far */
    char *frame;              /* ws only: the masked frame */
    void *tls;                /* SSL * once there is one */
    int busy, resent;
};

struct options {
    enum mode mode;
    enum net net;
    const char *host_path, *body;
    int port, conns;
    size_t size;              /* of a message's payload */
    double rate;              /* requests per second of all connections together; 0: as fast as replies come */
};
extern struct options opt;

void die(int status, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
uint64_t clock_ns(clockid_t clock);

/* load_wire.c. The two calls return -1 with EAGAIN where nothing can be done now; receiving returns 0 at the end. */
void wire_init(void);
void wire_open(struct conn *c);         /* connects, and leaves the socket non-blocking; a TLS handshake is still due */
void wire_finish_opening(struct conn *c); /* waits until the TLS handshake is done */
void wire_close(struct conn *c);
ssize_t wire_send(struct conn *c, const char *data, size_t size);
ssize_t wire_recv(struct conn *c, char *into, size_t room);

/* load_check.c */
extern size_t out_size;                 /* bytes of a request on the wire */
extern char *scratch;                   /* RECV_SIZE bytes to receive into */
enum { RECV_SIZE = 1 << 18, HTTP_MAX = 1 << 14 };
void check_init(void);
void ws_upgrade(struct conn *c);
void make_request(struct conn *c);
char *room_for(struct conn *c, size_t *room);
int check_reply(struct conn *c, const char *data, size_t n);   /* 1 when the whole reply is there */

/* load_stat.c */
struct cpu { uint64_t total_ns; unsigned long long user_ticks, sys_ticks; };
struct cpu server_cpu(int pid);
void stat_reset(void);
void stat_record(uint64_t ns);
double stat_percentile_us(double share);

#endif
