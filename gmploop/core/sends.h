/* Sends that wait, and who may do one of them: what a batch of writes is made of (batch.pyx, flusher.h).
 *
 * A socket's small data waits in an array until the array's owner flushes, or the flusher thread sends it because that
 * takes too long. In a loop with a thread of its own owner and writer are one thread, and the array's lock is enough. A
 * world that moves writes into the array of the M that runs it, and may be run by another M before that one flushes. So
 * the writer's end is a word of its own, `gl_out`, which says whose the data are. `state` is a generation << 2 and one of
 *
 *     NONE --put--> PENDING <==begin==> SENDING --end--> DONE --settle--> SETTLING --> NONE; DONE if not all was sent
 *       ^              |                                   |
 *       +----take------+---------------take----------------+
 *
 * put and take are the world's (one thread at a time runs it); begin and end the array's owner's or the flusher's; settle
 * the owner's. All but put are by CAS from a state of the entry's own generation, so one of them wins, and an entry that
 * was taken back, its place in the array still there, can do nothing any more: put begins a new generation.
 *
 * Each put is sent once or taken back once: PENDING is left once, to SENDING or to NONE, and only who takes it to SENDING
 * sends. In order: a world takes back before it puts or sends again, and take waits while it is SENDING or SETTLING. Both
 * are short and wait for nobody: sends do not block, and the owner needs no lock of the interpreter's to end them (what
 * settles has it, and calls nothing). The data live as long as they may be sent: `out` of the Watch is the world's in NONE
 * and PENDING, where it is not let go before take has won, the sender's in SENDING (who reads it) and SETTLING (who drops
 * it). Release of each state with acquire of the next carries the data and `sent` over.
 *
 * What the flusher cannot send, since the peer does not read, becomes PENDING again, and is tried again a millisecond later:
 * the owner, which would tell the world, may be stuck for long. `sent` is how much of it has gone until then.
 *
 * The descriptor, too: who closes it takes back first, and so waits for a send that is under way.
 * A generation has 30 bits, an entry lives for milliseconds: it does not come round.
 */
#ifndef GMPLOOP_SENDS_H
#define GMPLOOP_SENDS_H

#include "atomics.h"
#include "uring.h"
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

enum { GL_PENDING = INT_MIN, GL_ALL = INT_MAX };        /* not sent; sent whole */
enum { GL_OUT_NONE, GL_OUT_PENDING, GL_OUT_SENDING, GL_OUT_DONE };
#define GL_OUT_SETTLING GL_OUT_SENDING                  /* to all others it is the same */

typedef struct { uint32_t state; int sent; } gl_out;

typedef struct {
    const char *data;                   /* NULL: taken away */
    int fd;
    uint32_t len;
    int sent;                           /* GL_PENDING, or bytes (GL_ALL: all), or -errno */
    uint32_t gen;
    gl_out *out;                        /* of a world that moves */
} gl_send;

static inline int gl_out_step(gl_out *o, uint32_t gen, uint32_t from, uint32_t to) {
    uint32_t old = gen << 2 | from;
    GL_RACE();
    return __atomic_compare_exchange_n(&o->state, &old, gen << 2 | to, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static inline int gl_out_sent(gl_out *o) { return gl_load_relaxed(&o->sent); }

/* The world's: it has something to be sent. Its generation. */
static inline uint32_t gl_out_put(gl_out *o) {
    uint32_t gen = ((gl_load_relaxed(&o->state) >> 2) + 1) & (UINT32_MAX >> 2);
    gl_store_relaxed(&o->sent, 0);
    gl_store_release(&o->state, gen << 2 | GL_OUT_PENDING);
    return gen;
}

/* The world's, or by who has taken its descriptor's number: what became of it. GL_PENDING: nothing, and now it is not sent;
 * GL_ALL also when nothing was put. */
static inline int gl_out_take(gl_out *o) {
    for (;;) {
        uint32_t state = gl_load_acquire(&o->state), gen = state >> 2;
        switch (state & 3) {
        case GL_OUT_NONE: return GL_ALL;
        case GL_OUT_PENDING:
            if (gl_out_step(o, gen, GL_OUT_PENDING, GL_OUT_NONE)) return gl_out_sent(o) ? gl_out_sent(o) : GL_PENDING;
            break;
        case GL_OUT_DONE:
            if (gl_out_step(o, gen, GL_OUT_DONE, GL_OUT_NONE)) return gl_out_sent(o);
            break;
        default: sched_yield();
        }
    }
}

/* How many of the `size` bytes that were put are unsent. The world's. */
static inline int gl_out_left(gl_out *o, int size) {
    int sent = gl_load_acquire(&o->state) & 3 ? gl_out_sent(o) : size;
    return sent < 0 ? size : sent < size ? size - sent : 0;
}

static inline int gl_send_begin(gl_send *s) {
    if (!s->data || s->sent != GL_PENDING) return 0;
    if (!s->out || gl_out_step(s->out, s->gen, GL_OUT_PENDING, GL_OUT_SENDING)) return 1;
    s->data = NULL;                     /* the world has taken it back */
    return 0;
}

/* By who has begun it; of one that it has not begun nothing changes. */
static inline void gl_send_end(gl_send *s) {
    gl_out *o = s->out;
    if (!o || gl_load_relaxed(&o->state) != (s->gen << 2 | GL_OUT_SENDING)) return;
    if (s->sent == GL_ALL) gl_store_relaxed(&o->sent, GL_ALL);
    else if (s->sent >= 0) gl_store_relaxed(&o->sent, gl_out_sent(o) + s->sent);
    else if ((s->sent != -EAGAIN && s->sent != -EINTR) || !gl_out_sent(o)) gl_store_relaxed(&o->sent, s->sent);
    gl_out_step(o, s->gen, GL_OUT_SENDING, GL_OUT_DONE);
}

/* After its end, by the array's owner: 1, and gl_out_settled() follows; or 0, the world has been quicker. If all was sent
 * the data are dropped in between; if not the world is kept, which will find it DONE. */
static inline int gl_out_settle(gl_send *s) {
    return s->data && gl_out_step(s->out, s->gen, GL_OUT_DONE, GL_OUT_SETTLING);
}

static inline void gl_out_settled(gl_send *s, int all) {
    gl_out_step(s->out, s->gen, GL_OUT_SETTLING, all ? GL_OUT_NONE : GL_OUT_DONE);
}

static inline void gl_send_by_call(gl_send *s) {
    ssize_t n = send(s->fd, s->data, s->len, MSG_NOSIGNAL | MSG_DONTWAIT);
    s->sent = n < 0 ? -errno : (int)n;
}

/* Without a ring, if it is still to be done. */
static inline void gl_send_now(gl_send *s) {
    if (!gl_send_begin(s)) return;
    gl_send_by_call(s);
    gl_send_end(s);
}

/* The flusher's: what is not sent will be tried again, if it is a world's that moves. */
static inline void gl_send_or_wait(gl_send *s) {
    if (!gl_send_begin(s)) return;
    gl_send_by_call(s);
    if (!s->out || (s->sent < 0 ? s->sent != -EAGAIN && s->sent != -EINTR : (uint32_t)s->sent >= s->len)) {
        gl_send_end(s);
        return;
    }
    if (s->sent > 0) {
        s->data += s->sent;
        s->len -= (uint32_t)s->sent;
        gl_store_relaxed(&s->out->sent, gl_out_sent(s->out) + s->sent);
    }
    s->sent = GL_PENDING;
    gl_out_step(s->out, s->gen, GL_OUT_SENDING, GL_OUT_PENDING);
}

#ifdef __linux__
/* Fill an entry of a ring: with MSG_WAITALL a short send fails, so that only what was sent whole tells nothing. */
static inline void gl_send_fill(gl_sqe *e, gl_send *s, uint64_t user_data) {
    e->opcode = GL_OP_SEND;
    e->fd = s->fd;
    e->flags = GL_SQE_SKIP_SUCCESS;
    e->op_flags = MSG_NOSIGNAL | MSG_DONTWAIT | MSG_WAITALL;
    e->addr = (uint64_t)(uintptr_t)s->data;
    e->len = s->len;
    e->user_data = user_data;
    s->sent = GL_ALL;
}
#endif

/* Do all sends of the array that are not done: by the ring, as many at a time as fit; without one (fd -1), or where it
 * fails, one by one. Waits for nothing. The ring has no other operations. 0, or -errno if the ring has failed. */
static int gl_sends_do(gl_uring *r, gl_send *a, uint32_t n) {
    uint32_t i = 0, from;
    int error = 0;
#ifdef __linux__
    while (r->fd >= 0 && !error && i < n) {
        gl_cqe c;
        for (from = i; i < n && gl_uring_queued(r) < r->sq_entries; i++)
            if (gl_send_begin(&a[i])) gl_send_fill(gl_uring_sqe(r), &a[i], i);
        error = gl_uring_submit(r);
        while (gl_uring_next(r, &c))
            if (c.user_data < n) a[c.user_data].sent = c.res;
        for (uint32_t k = error ? gl_uring_queued(r) : 0; k > 0; k--) {     /* not taken by the kernel: nor sent */
            gl_sqe *e = gl_uring_queued_at(r, k - 1);
            gl_send *s = e->opcode == GL_OP_SEND ? &a[e->user_data] : NULL;
            memset(e, 0, sizeof *e);                                        /* a NOP, when it takes that */
            e->flags = GL_SQE_SKIP_SUCCESS;
            e->user_data = UINT64_MAX;
            if (s) gl_send_by_call(s);
        }
        for (; from < i; from++) gl_send_end(&a[from]);
    }
#endif
    for (; i < n; i++) gl_send_now(&a[i]);
    return error;
}

#endif
