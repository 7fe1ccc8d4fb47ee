/* waitq.h: every interleaving of a few senders, receivers, selects, closers and lockers, over the code that ships.
 *
 * One step is one locked section or one atomic access: what happens between two steps of one actor is what other threads
 * may see. choose() returns each of its answers in some run; the runs are repeated until all combinations are done. An
 * actor that waits may be cancelled at any moment, and what it was granted may be dropped instead of resumed (its loop
 * was closed). */
#include "check.h"
#include "waitq.h"
#include <stddef.h>

/* Items stand for pointers to objects: of these the lowest three bits are 0. */
#define ITEM(i) ((void *)(((intptr_t)(i) + 1) * 8))
#define NUMBER(item) ((int)((intptr_t)(item) / 8 - 1))

enum { ACTORS = 5, CASES = 2, ITEMS = 8, DEPTH = 400 };

/* -- all runs */

static unsigned char path[DEPTH], width[DEPTH];
static int depth;
static long runs;

static int choose(int n) {
    CHECK(depth < DEPTH && n > 0);
    width[depth] = (unsigned char)n;
    return path[depth++];
}

static int next_run(void) {
    runs++;
    while (depth && path[depth - 1] + 1 == width[depth - 1]) depth--;
    if (!depth) return 0;
    path[depth - 1]++;
    memset(path + depth, 0, sizeof path - depth);
    depth = 0;
    return 1;
}

/* -- actors */

typedef enum { BEGIN, ARM, ASLEEP, RESUME, QUIT, LEAVE, RELEASE, WAKING, END } step;

typedef struct {
    step at, after;                 /* after: where it goes on when it has woken those it decided */
    int state, woken, n, cancels, refs;
    gl_wcase node[CASES];
    gl_chan *chan[CASES];
    gl_gate *gate;
    gl_chain out;
    int sent, got, left;            /* number of the item sent, received; queue that it leaves next */
    int close;
} actor;

static actor *actor_of(gl_wnode *n) { return (actor *)((char *)gl_wait_state(n) - offsetof(actor, state)); }

static actor actors[ACTORS];
static int n_actors, n_items;
static gl_chan chan[2];
static gl_gate gate;

static actor *add(int op, int n, int item, int cancels) {
    actor *a = &actors[n_actors++];
    *a = (actor){ .n = n, .cancels = cancels, .sent = item };
    n_items += op == OP_SEND;
    for (int i = 0; i < n; i++) {
        a->node[i] = (gl_wcase){ .state = &a->state, .index = i };
        a->node[i].node = (gl_wnode){ .is_case = 1, .op = op, .item = op == OP_SEND ? ITEM(item) : NULL };
        a->chan[i] = &chan[i];
    }
    return a;
}

/* Where a node waits. */
static gl_waitq *queue_of(actor *a, int i) {
    return a->gate ? &a->gate->q : a->node[i].node.op == OP_SEND ? &a->chan[i]->sendq : &a->chan[i]->recvq;
}

static void received(actor *a, void *item) {
    CHECK(item && !a->got);
    a->got = NUMBER(item) + 1;
}

/* Goes on at `then` when it has woken those in a->out, one by one. */
static void wake_then(actor *a, step then) {
    a->at = a->out.first ? WAKING : then;
    a->after = then;
    if (a->out.spare) actor_of(a->out.spare)->refs--;
    a->out.spare = NULL;
}

static int try_case(actor *a, int i) {
    void *item = NULL;
    int r;
    if (a->node[i].node.op == OP_SEND) {
        r = gl_chan_send(a->chan[i], a->node[i].node.item, &a->out);
        if (r == SYNC_DONE) a->node[i].node.item = NULL;
        return r;
    }
    r = gl_chan_recv(a->chan[i], &item, &a->node[i].node.seq, &a->out);
    if (r == SYNC_DONE) received(a, item);
    return r;
}

static void begin(actor *a) {
    int r = SYNC_WAIT;
    if (a->close) {
        gl_chan_close(&chan[0], &a->out);
        wake_then(a, END);
        return;
    }
    for (int i = 0; i < a->n && r == SYNC_WAIT; i++)
        r = a->gate ? gl_gate_try(a->gate, a->node[0].node.op) : try_case(a, i);
    if (r == SYNC_WAIT)
        for (int i = 0; i < a->n; i++, a->refs++)
            gl_q_append(queue_of(a, i), &a->node[i].node);
    wake_then(a, r == SYNC_WAIT ? ARM : a->gate ? RELEASE : END);
}

static gl_wnode *winner(actor *a) { return &a->node[(unsigned)a->state >> W_INDEX_SHIFT].node; }

/* What was granted goes to the next, by whoever takes it first: the one who drops its wake-up, or its own cancel. */
static void give_back(actor *a) {
    gl_wnode *n = winner(a);
    if ((a->state & W_OUTCOME) != W_GRANTED || !gl_wait_take(&a->state)) return;
    if (a->gate) CHECK(gl_gate_leave(a->gate, n->op, &a->out) == 0);
    else if (n->op != OP_SEND) a->refs += gl_chan_restore(a->chan[gl_wait_index(n)], n, &a->out);
}

static void cancel(actor *a) {
    a->cancels--;
    int won = gl_wait_decide(&a->state, W_CANCELLED, 0);
    if (won && a->n == 1 && gl_q_remove(queue_of(a, 0), &a->node[0].node)) {
        a->refs--;
        if (a->gate) gl_gate_settle(a->gate, &a->out);
    }
    if (!won) give_back(a);
    wake_then(a, LEAVE);
}

static void resume(actor *a) {
    int outcome = a->state & W_OUTCOME;
    CHECK(outcome != W_PENDING);
    if (a->cancels && choose(2)) {              /* the wake-up is dropped: what was granted must go on */
        a->cancels--;
        give_back(a);
        wake_then(a, QUIT);
        return;
    }
    CHECK(gl_wait_take(&a->state));
    a->at = LEAVE;
    if (outcome != W_GRANTED) return;
    if (a->gate) a->after = a->at = RELEASE;
    else if (winner(a)->op != OP_SEND) {
        received(a, winner(a)->item);
        winner(a)->item = NULL;
    }
}

/* A select leaves the queues where it lost, one after the other. */
static void leave(actor *a) {
    int outcome = a->state & W_OUTCOME;
    gl_wnode *n;
    int i = a->left;
    if (i == a->n) { a->at = END; return; }
    n = &a->node[i].node;
    a->left++;
    if (a->n > 1 && !((outcome == W_GRANTED || outcome == W_CLOSED) && n == winner(a))) a->refs -= gl_q_remove(queue_of(a, i), n);
}

static void release(actor *a) {
    CHECK(gl_gate_leave(a->gate, a->node[0].node.op, &a->out) == 0);
    wake_then(a, END);
}

static void wake_one(actor *a) {
    gl_wnode *n = a->out.first;
    actor *other = actor_of(n);
    a->out.first = n->link;
    if (!n->link) a->out.last = NULL;
    other->refs--;
    if (n->wake) {
        CHECK(!other->woken && other->state & W_ARMED);
        other->woken = 1;
    }
    if (!a->out.first) a->at = a->after;
}

/* Those who hold the gate, resumed or not, may hold it together. */
static void check_holders(void) {
    int readers = 0, others = 0;
    for (actor *a = actors; a < actors + n_actors; a++) {
        int granted = (a->state & (W_OUTCOME | W_TAKEN)) == W_GRANTED;
        if (a->gate && (granted || a->at == RELEASE || (a->at == WAKING && a->after == RELEASE)))
            *(a->node[0].node.op == OP_READ ? &readers : &others) += 1;
    }
    CHECK(others <= 1 && !(others && readers));
}

static int can_move(actor *a) { return a->at != END && (a->at != ASLEEP || a->woken || a->cancels); }

static void move(actor *a) {
    switch (a->at) {
    case BEGIN: begin(a); break;
    case ARM:
        if (gl_wait_arm(&a->state)) { CHECK(!a->woken); a->woken = 1; }
        a->at = ASLEEP;
        break;
    case ASLEEP:
        if (a->cancels && choose(2)) cancel(a);
        else if (a->woken) a->at = RESUME;
        else a->cancels = 0;                    /* it will not be cancelled */
        break;
    case QUIT: give_back(a); wake_then(a, LEAVE); break;
    case RESUME: resume(a); break;
    case LEAVE: leave(a); break;
    case RELEASE: release(a); break;
    case WAKING: wake_one(a); break;
    case END: CHECK(0);
    }
}

static void reset(size_t capacity) {
    for (int c = 0; c < 2; c++) {
        gl_ring_free(&chan[c].buf);
        memset(&chan[c], 0, sizeof chan[c]);
        chan[c].capacity = capacity;
        chan[c].seq = UINT32_MAX - 1;           /* it wraps */
    }
    memset(&gate, 0, sizeof gate);
    n_actors = n_items = 0;
}

static int is_returned(actor *a) {
    if (a->gate || !a->n) return 0;
    for (gl_wnode *n = a->chan[gl_wait_index(winner(a))]->returned.first; n; n = n->next) if (n == winner(a)) return 1;
    return 0;
}

/* When nobody can move: all that could happen has happened, once. */
static void check_end(void) {
    int where[ITEMS] = { 0 };
    for (int i = 0; i < n_actors; i++) {
        actor *a = &actors[i];
        CHECK(a->at == END || (a->at == ASLEEP && !(a->state & W_OUTCOME)));     /* else a lost wake-up */
        if (a->got) where[a->got - 1]++;
        if (a->node[0].node.op == OP_SEND && !a->gate) {
            int kept = 1;
            for (int k = 0; k < a->n; k++) kept &= a->node[k].node.item != NULL;
            where[a->sent] += kept;
        }
        CHECK(a->refs == (a->at == ASLEEP ? a->n : 0) + is_returned(a));
    }
    for (int c = 0; c < 2; c++) {
        gl_chan *ch = &chan[c];
        gl_wnode *live_receiver = ch->recvq.first, *live_sender = ch->sendq.first, *n;
        if (live_receiver) CHECK(gl_chan_len(ch) == 0);
        if (live_receiver && live_sender) CHECK(gl_wait_state(live_receiver) == gl_wait_state(live_sender));
        if (live_sender) CHECK(gl_chan_len(ch) >= ch->capacity);
        if (ch->closed) CHECK(!live_receiver && !live_sender);
        for (size_t i = 0; i < gl_ring_len(&ch->buf); i++) where[NUMBER(gl_ring_at(&ch->buf, i))]++;
        for (n = ch->returned.first; n; n = n->next) {
            where[NUMBER(n->item)]++;
            if (n->next) CHECK((int32_t)(n->next->seq - n->seq) > 0);
        }
    }
    for (int i = 0; i < n_items; i++) CHECK(where[i] == 1);
    if (gate.q.first) CHECK(!gl_gate_passes(&gate, gate.q.first->op));
}

static void explore(void (*set_up)(size_t), size_t capacity) {
    runs = 0;
    memset(path, 0, sizeof path);
    depth = 0;
    do {
        reset(capacity);
        set_up(capacity);
        for (;;) {
            int able[ACTORS], n = 0;
            for (int i = 0; i < n_actors; i++) if (can_move(&actors[i])) able[n++] = i;
            if (!n) break;
            move(&actors[able[n == 1 ? 0 : choose(n)]]);
            check_holders();
        }
        check_end();
        if (gate.q.first == NULL && n_actors && actors[0].gate) CHECK(gate.value == actors[0].sent);
    } while (next_run());
    printf("%ld runs\n", runs);
}

/* -- who takes part */

static void two_receivers(size_t c) { (void)c; add(OP_RECV, 1, 0, 1); add(OP_RECV, 1, 0, 1); add(OP_SEND, 1, 0, 0); }
static void two_senders(size_t c) { (void)c; add(OP_SEND, 1, 0, 1); add(OP_SEND, 1, 1, 1); add(OP_RECV, 1, 0, 0); }
static void closed_meanwhile(size_t c) {
    (void)c; add(OP_RECV, 1, 0, 1); add(OP_SEND, 1, 0, 1); add(OP_RECV, 0, 0, 0)->close = 1;
}
static void a_select_and_two(size_t c) {
    (void)c; add(OP_RECV, 2, 0, 1); add(OP_SEND, 1, 0, 0); add(OP_SEND, 1, 1, 0)->chan[0] = &chan[1];
}
static void two_selects(size_t c) {
    (void)c; add(OP_RECV, 2, 0, 1); add(OP_SEND, 2, 0, 0); add(OP_RECV, 1, 0, 0);
}
/* Two were handed an item each and have not resumed. */
static void two_given_back(size_t c) {
    gl_chain out = { 0 };
    (void)c;
    for (int i = 0; i < 2; i++) {
        actor *a = add(OP_RECV, 1, 0, 1);
        begin(a);
        move(a);
    }
    for (; n_items < 2; n_items++) CHECK(gl_chan_send(&chan[0], ITEM(n_items), &out) == SYNC_DONE);
    add(OP_RECV, 0, 0, 0)->out = out;
    wake_then(&actors[2], END);
}

static void lockers(long long value, const int *ops, int n, int cancels) {
    gate.value = value;
    for (int i = 0; i < n; i++) {
        actor *a = add(ops[i], 1, (int)value, i < cancels);
        a->gate = &gate;
    }
}
static void mutex(size_t c) { (void)c; lockers(1, (int[]){ OP_PERMIT, OP_PERMIT, OP_PERMIT }, 3, 2); }
static void readers_and_writer(size_t c) { (void)c; lockers(0, (int[]){ OP_WRITE, OP_READ, OP_READ }, 3, 2); }
static void writers_and_reader(size_t c) { (void)c; lockers(0, (int[]){ OP_READ, OP_WRITE, OP_WRITE }, 3, 2); }

#define EXPLORE(name) static void test_##name(void) { for (size_t c = 0; c < 2; c++) explore(name, c); }
EXPLORE(two_receivers) EXPLORE(two_senders) EXPLORE(closed_meanwhile) EXPLORE(a_select_and_two)
EXPLORE(two_given_back) EXPLORE(two_selects) EXPLORE(mutex) EXPLORE(readers_and_writer) EXPLORE(writers_and_reader)

int main(int argc, char **argv) {
    const check_test tests[] = {
        { "two_receivers", test_two_receivers }, { "two_senders", test_two_senders },
        { "closed_meanwhile", test_closed_meanwhile }, { "a_select_and_two", test_a_select_and_two },
        { "two_given_back", test_two_given_back }, { "two_selects", test_two_selects }, { "mutex", test_mutex }, { "readers_and_writer", test_readers_and_writer },
        { "writers_and_reader", test_writers_and_reader }, { 0 } };
    return check_main(argc, argv, tests);
}
