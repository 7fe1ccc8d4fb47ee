/* Wait queues by which worlds and threads hand things to each other: channels, permits, read-write locks, gates.
 *
 * An operation that cannot be done at once becomes a *wait*: a state word and one node for each object that it waits at
 * (one; a select has several). Everything here but the state word is touched under the object's spin lock only, or by who
 * has the node in hand.
 *
 * The state word of a wait. Its low bits are the outcome, PENDING at first. gl_wait_decide() changes it once, by CAS, and
 * whoever wins that CAS is the only one to act on the wait: a partner (GRANTED), close (CLOSED), the waiter itself
 * (CANCELLED, EXPIRED).
 *
 *   PENDING --decide--> GRANTED | CLOSED | CANCELLED | EXPIRED --take--> the same | TAKEN
 *
 * ARMED  is set by the waiter when it has said whom to wake (release); decide acquires it. Either decide comes second and
 *        its caller wakes, or arm comes second and the waiter, who sees the outcome, wakes itself: exactly one of the two.
 * TAKEN  is set by who consumes the outcome, or gives it back because nobody will: exactly one of the two.
 *
 * Exactly once. An item that is granted is in node->item of the wait that won, nowhere else, until TAKEN is set; the
 * taker returns it to its caller or puts it back by gl_chan_restore(): to the next receiver, else in front of what is
 * buffered, by the number under which it was handed out, so that several that come back keep their order. The same holds
 * for permits and locks: a grant is held by the one who was granted it, and is given on when that one is gone.
 *
 * No lost wake-up, no barging. Under the lock these hold between any two operations, dead nodes (of selects that were
 * decided elsewhere, skipped when met) not counted:
 *   channel   a receiver waits => nothing is buffered and no sender waits (but nodes of its own select);
 *             a sender waits   => as much is buffered as `capacity` allows.
 *   gate      the first in the queue could not pass as things stand; who arrives while somebody waits, waits behind.
 * So an arrival sees either a partner or a reason to wait, and whoever takes that reason away looks at the queue in the
 * same locked section.
 *
 * Lock order: the list of all objects (shared.pyx), then objects by ascending address. In a locked section no reference is
 * dropped, nothing of Python is called and nothing blocks: those who were decided are collected in a chain (`link`,
 * written once in a node's life) and woken after the unlock. With the GIL no section is ever met locked.
 *
 * Room. Nodes wait by the million, so a node is five words. `link` is where `prev` was: a node is linked when it has left
 * its queue for good, but for `returned`, which is walked forwards only and so leaves `link` alone: a node may be put there
 * while who decided it is still going through its chain. The queue that a node stands in is known to who removes it. The
 * state word is in the node, but for the nodes of a select, which are gl_wcase. `seq` wraps: two in one queue are never
 * 2^31 items apart, unless a receiver was handed one and did not resume for so many (then only their order would suffer).
 */
#ifndef GMPLOOP_WAITQ_H
#define GMPLOOP_WAITQ_H

#include "atomics.h"
#include "ring.h"

enum { W_PENDING = 0, W_GRANTED = 1, W_CLOSED = 2, W_CANCELLED = 3, W_EXPIRED = 4, W_OUTCOME = 7, W_ARMED = 8,
       W_TAKEN = 16, W_INDEX_SHIFT = 8 };
enum { SYNC_DONE = 0, SYNC_WAIT = 1, SYNC_CLOSED = 2, SYNC_NO_MEMORY = 3 };
enum { OP_RECV = 0, OP_NEXT = 1, OP_SEND = 2, OP_PERMIT = 3, OP_READ = 4, OP_WRITE = 5, OP_PASS = 6 };

typedef struct gl_wnode gl_wnode;
typedef struct { gl_wnode *first, *last; size_t n; } gl_waitq;

struct gl_wnode {
    gl_wnode *next;
    union {
        gl_wnode *prev;
        gl_wnode *link;         /* the next of a chain of decided nodes */
    };
    void *item;                 /* what a sender brings until it is taken; what a receiver was given. A reference */
    int state;                  /* the wait's word, if it has one node */
    uint32_t seq;               /* under which the item was given */
    unsigned char op;
    unsigned char wake : 1, is_case : 1;    /* has a link, and is to be woken; is a gl_wcase. By who decides; never written */
    unsigned char queued;       /* whether it stands in a queue, which then holds a reference to the wait's object */
    /* The wait's own, here for room; see wait.pxd. */
    unsigned char stage, how;
    unsigned char own, sent;
    unsigned char blocking : 1, delivered : 1;
};

/* A node of a select. */
typedef struct {
    gl_wnode node;
    int *state;                 /* the wait's word */
    unsigned index;
} gl_wcase;

static inline int *gl_wait_state(gl_wnode *n) { return n->is_case ? ((gl_wcase *)n)->state : &n->state; }
static inline unsigned gl_wait_index(const gl_wnode *n) { return n->is_case ? ((const gl_wcase *)n)->index : 0; }

/* Returns 0 when it was decided before, 1 when this call decided, 2 when the caller has to wake the waiter as well. */
static inline int gl_wait_decide(int *state, int outcome, unsigned index) {
    int s = gl_load_acquire(state);
    do {
        if (s & W_OUTCOME) return 0;
        GL_RACE();
    } while (!__atomic_compare_exchange_n(state, &s, s | outcome | (int)(index << W_INDEX_SHIFT), 0, __ATOMIC_ACQ_REL,
                                          __ATOMIC_ACQUIRE));
    return s & W_ARMED ? 2 : 1;
}

/* The waiter can be woken from now on. Returns whether it was decided before: then it wakes itself. */
static inline int gl_wait_arm(int *state) { return (gl_fetch_or_acq_rel(state, W_ARMED) & W_OUTCOME) != 0; }

/* Whether the caller is the one who takes the outcome. */
static inline int gl_wait_take(int *state) { return !(gl_fetch_or_acq_rel(state, W_TAKEN) & W_TAKEN); }

/* -- queues */

static inline void gl_q_append(gl_waitq *q, gl_wnode *n) {
    n->queued = 1;
    n->next = NULL;
    n->prev = q->last;
    if (q->last) q->last->next = n; else q->first = n;
    q->last = n;
    q->n++;
}

/* Whether it stood in the queue, whose reference is the caller's now. A node stands in no other, so none but the first of
 * `returned` is taken out there, by the next. */
static inline int gl_q_remove(gl_waitq *q, gl_wnode *n) {
    if (!n->queued) return 0;
    if (n->prev) n->prev->next = n->next; else q->first = n->next;
    if (n->next) n->next->prev = n->prev; else q->last = n->prev;
    n->queued = 0;
    q->n--;
    return 1;
}

/* -- `returned`: by seq, and linked by `next` only */

static inline int gl_seq_before(uint32_t x, uint32_t y) { return (int32_t)(x - y) < 0; }

static inline void gl_returned_insert(gl_waitq *q, gl_wnode *n) {
    gl_wnode **at = &q->first;
    while (*at && !gl_seq_before(n->seq, (*at)->seq)) at = &(*at)->next;
    n->queued = 1;
    n->next = *at;
    *at = n;
    q->n++;
}

static inline gl_wnode *gl_returned_pop(gl_waitq *q) {
    gl_wnode *n = q->first;
    if (!n) return NULL;
    q->first = n->next;
    n->queued = 0;
    q->n--;
    return n;
}

/* What a locked section leaves to be done after it: those it decided, in that order, and a node whose reference it took
 * out of `returned` (its `link` may still be in use by who decided it). */
typedef struct { gl_wnode *first, *last, *spare; } gl_chain;

static inline void gl_chain_add(gl_chain *c, gl_wnode *n, int wake) {
    n->wake = wake & 1;
    n->link = NULL;
    if (c->last) c->last->link = n; else c->first = n;
    c->last = n;
}

/* Takes the first node whose wait can still be decided; dead ones in front of it leave the queue as well. Those of a
 * receiver get `item`. */
static inline gl_wnode *gl_q_claim(gl_waitq *q, int outcome, void *item, uint32_t seq, gl_chain *out) {
    gl_wnode *n;
    while ((n = q->first)) {
        void *kept = n->item;
        int won;
        gl_q_remove(q, n);
        if (item) { n->item = item; n->seq = seq; }
        won = gl_wait_decide(gl_wait_state(n), outcome, gl_wait_index(n));
        if (!won) n->item = kept;
        gl_chain_add(out, n, won == 2);
        if (won) return n;
    }
    return NULL;
}

/* -- channels */

typedef struct {
    gl_waitq recvq, sendq;
    gl_waitq returned;      /* waits that gave their item back, by seq; they come before what is in buf */
    gl_ring buf;
    size_t capacity;
    uint32_t seq;           /* of the last item handed to a waiting receiver */
    int closed;
} gl_chan;

static inline size_t gl_chan_len(const gl_chan *c) { return gl_ring_len(&c->buf) + c->returned.n; }

/* Receives into *item; *seq is the item's place, should it come back. */
static inline int gl_chan_recv(gl_chan *c, void **item, uint32_t *seq, gl_chain *out) {
    gl_wnode *n = gl_returned_pop(&c->returned);
    *seq = n ? n->seq : c->seq;
    if (n) {
        *item = n->item;
        n->item = NULL;
        out->spare = n;
    } else if (gl_ring_len(&c->buf)) {
        *item = (void *)gl_ring_pop(&c->buf);
    } else {
        if (!(n = gl_q_claim(&c->sendq, W_GRANTED, NULL, 0, out))) return c->closed ? SYNC_CLOSED : SYNC_WAIT;
        *item = n->item;
        n->item = NULL;
        return SYNC_DONE;
    }
    while (gl_chan_len(c) < c->capacity && c->sendq.first && gl_ring_reserve(&c->buf, 1) == 0) {
        if (!(n = gl_q_claim(&c->sendq, W_GRANTED, NULL, 0, out))) break;
        gl_ring_push(&c->buf, (uintptr_t)n->item);
        n->item = NULL;
    }
    return SYNC_DONE;
}

/* Sends; the caller's reference to the item is the channel's or the receiver's when it is done. */
static inline int gl_chan_send(gl_chan *c, void *item, gl_chain *out) {
    if (c->closed) return SYNC_CLOSED;
    if (gl_q_claim(&c->recvq, W_GRANTED, item, c->seq + 1, out)) {
        c->seq++;
        return SYNC_DONE;
    }
    if (gl_chan_len(c) >= c->capacity) return SYNC_WAIT;
    return gl_ring_push(&c->buf, (uintptr_t)item) < 0 ? SYNC_NO_MEMORY : SYNC_DONE;
}

/* The item of a node that was granted one and has taken it without use. Returns whether the node itself keeps it and
 * stands in a queue now, which needs a reference. */
static inline int gl_chan_restore(gl_chan *c, gl_wnode *n, gl_chain *out) {
    if (gl_q_claim(&c->recvq, W_GRANTED, n->item, n->seq, out)) {
        n->item = NULL;
        return 0;
    }
    gl_returned_insert(&c->returned, n);
    return 1;
}

static inline void gl_chan_close(gl_chan *c, gl_chain *out) {
    c->closed = 1;
    while (gl_q_claim(&c->recvq, W_CLOSED, NULL, 0, out)) ;
    while (gl_q_claim(&c->sendq, W_CLOSED, NULL, 0, out)) ;
}

/* Which ready case of a select is taken is random; how good a random number is does not matter. */
static inline unsigned gl_any_below(unsigned limit) {
    static _Thread_local uint64_t state;
    uint64_t z = state += 0x9E3779B97F4A7C15ULL + (uint64_t)(uintptr_t)&state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return (unsigned)((z ^ (z >> 31)) >> 32) % limit;
}

/* -- gates: mutex and semaphore (OP_PERMIT, value = permits left), read-write lock (value = readers, or -1 for a writer),
 *    event and wait group (OP_PASS, value = what must become 0) */

typedef struct { gl_waitq q; long long value; } gl_gate;

static inline int gl_gate_passes(const gl_gate *g, int op) {
    return op == OP_PERMIT ? g->value > 0 : op == OP_READ ? g->value >= 0 : g->value == 0;
}

static inline void gl_gate_enter(gl_gate *g, int op) {
    g->value += op == OP_PASS ? 0 : op == OP_READ ? 1 : -1;
}

static inline int gl_gate_try(gl_gate *g, int op) {
    if (g->q.first || !gl_gate_passes(g, op)) return SYNC_WAIT;
    gl_gate_enter(g, op);
    return SYNC_DONE;
}

/* Lets in whom it can, in order. After each change of value, and when one has left the queue. */
static inline void gl_gate_settle(gl_gate *g, gl_chain *out) {
    gl_wnode *n;
    while ((n = g->q.first) && gl_gate_passes(g, n->op))
        if ((n = gl_q_claim(&g->q, W_GRANTED, NULL, 0, out))) gl_gate_enter(g, n->op);
}

/* What `op` was let in for is over. -1 when nobody is in. */
static inline int gl_gate_leave(gl_gate *g, int op, gl_chain *out) {
    if (op == OP_PASS) return 0;
    if (op == OP_READ ? g->value <= 0 : op == OP_WRITE && g->value != -1) return -1;
    g->value += op == OP_READ ? -1 : 1;
    gl_gate_settle(g, out);
    return 0;
}

#endif
