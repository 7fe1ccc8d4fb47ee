/* The thread that sees to it that what a batch holds back leaves in time: the bound of write_batching.
 *
 * A batch holds the small sends of a loop's turn until the loop polls. `wait_ns` after the first was put there this thread
 * asks the owner for them (`due`), who sends them together before its next callback (an M before its next world): a turn of
 * many callbacks can take longer, though one of many short ones looks itself (runtime.pyx), to save these looks. If that does
 * not come within a fourth of that time, since a callback blocks or computes, the thread sends them itself, one by one. It
 * needs no GIL, no ring and no Python: only send(2).
 *
 * An entry is PENDING until somebody has sent it, then `sent` is what send() gave, or -errno. Who may do what, in the batch
 * of a loop with a thread of its own:
 *   the loop's thread  adds an entry, gives it other bytes, takes it away (data NULL), takes all (the next turn's begin)
 *   the flusher        sends entries that are PENDING and there
 * each under the batch's `lock`, the flusher for one send at a time. So an entry is sent once; its bytes and its fd live
 * as long as it may be sent, because the loop's thread takes it away before it lets go of either; and the sends of one
 * socket stay in order, because it has one entry at most and no other send passes it (stream.pyx takes it away first).
 *
 * `watched` says that the flusher has the batch on its list. The loop's thread sets it with the first entry, under `lock`,
 * and puts the batch there; the flusher clears it, under `lock`, when it has found the batch empty `idle_looks` times in a
 * row. So a batch with entries is always on the list, and a server that is idle, or has one thing to do at a time, costs no
 * looks: with no batch on the list the thread sleeps. One under load costs a look each `wait_ns`, two if its turns last
 * longer; once `calm_looks` in a row have found nothing late, one each `calm_ns`, until one does. That is how late the first
 * may be that a callback keeps after a time in which none did: a look makes the loop's caches cold.
 *
 * A batch of an M (worlds that move) has entries whose writers other Ms may run by now: who may do what with those says
 * sends.h; its owner is the M. What they cannot send is tried again at the next look.
 *
 * Lock order: the flusher's `lock` (its list), a batch's `lock`. A batch leaves the list before it is freed.
 */
#ifndef GMPLOOP_FLUSHER_H
#define GMPLOOP_FLUSHER_H

#include "park.h"
#include "sends.h"
#if defined(__linux__)
#include <sys/prctl.h>
#endif

typedef struct gl_writes {
    gl_spinlock lock;
    int watched, idle, calm;            /* of the looks, how many in a row have found it empty, and nothing late */
    int due;                            /* the owner is to send what is there before its next callback; it reads it unlocked */
    uint32_t n, room, turn;             /* turn: how often all was taken */
    int64_t since_ns;                   /* of the first entry */
    int64_t asked_ns;                   /* when `due` was set */
    gl_send *a;
    struct gl_writes *next;
} gl_writes;

typedef struct {
    pthread_mutex_t lock;
    gl_writes *first;
    gl_note note;
    pthread_t thread;
    int running, stopping;              /* under lock */
    int64_t wait_ns, calm_ns;
    int idle_looks, calm_looks;
} gl_flusher;

/* Send what is pending in the batch, whose lock is held; it is let go between two sends. */
static void gl_writes_send(gl_writes *b) {
    uint32_t turn = b->turn;
    for (uint32_t i = 0; turn == b->turn && i < b->n; i++) {
        if (!b->a[i].data || b->a[i].sent != GL_PENDING) continue;
        gl_send_or_wait(&b->a[i]);
        gl_unlock(&b->lock);
        gl_lock(&b->lock);
    }
}

/* Count a look that has found nothing late; whether there have been many. */
static int gl_calm(const gl_flusher *F, gl_writes *b) {
    return b->calm > F->calm_looks || ++b->calm > F->calm_looks;
}

/* One look, with the flusher's lock held; at_once: nothing may wait, and nothing is watched any more. Returns when to
 * look again, < 0: not before somebody wakes it. */
static int64_t gl_flusher_look(gl_flusher *F, int64_t now_ns, int at_once) {
    int64_t next_ns = -1;
    gl_writes **at = &F->first, *b;
    while ((b = *at)) {
        int64_t due_ns;
        gl_lock(&b->lock);
        if (b->n) {
            b->idle = 0;
            due_ns = b->due ? b->asked_ns + F->wait_ns / 4 : b->since_ns + F->wait_ns;
            if (!at_once && due_ns <= now_ns && !b->due) {
                gl_store_relaxed(&b->due, 1);
                b->calm = 0;
                b->asked_ns = now_ns;
                due_ns = now_ns + F->wait_ns / 4;
            } else if (at_once || due_ns <= now_ns) {
                gl_writes_send(b);
                due_ns = now_ns + F->wait_ns;
            } else if (!b->due && gl_calm(F, b)) {
                due_ns = now_ns + F->calm_ns;
            }
        } else {
            b->idle++;
            due_ns = now_ns + (gl_calm(F, b) ? F->calm_ns : F->wait_ns);
        }
        if (at_once || b->idle > F->idle_looks) {
            *at = b->next;
            b->watched = b->idle = b->calm = 0;
        } else {
            at = &b->next;
            if (next_ns < 0 || due_ns < next_ns) next_ns = due_ns;
        }
        gl_unlock(&b->lock);
    }
    return next_ns;
}

/* Where it shares a core with the loop, a look is not to interrupt that each time: with SCHED_BATCH it has its turn when the
 * loop waits, or blocks, or when the kernel's next tick comes. With a core of its own it is on time. */
static void gl_interrupt_less(void) {
#if defined(SCHED_BATCH)
    struct sched_param none = { 0 };
    pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
#endif
}

static void *gl_flusher_run(void *arg) {
    gl_flusher *F = (gl_flusher *)arg;
#if defined(__linux__)
    prctl(PR_SET_NAME, "gmploop-flush", 0, 0, 0);
#endif
    gl_interrupt_less();
    for (;;) {
        pthread_mutex_lock(&F->lock);
        int stopping = F->stopping;
        int64_t now_ns = gl_now_ns(), next_ns = gl_flusher_look(F, now_ns, stopping);
        pthread_mutex_unlock(&F->lock);
        if (stopping) return NULL;
        gl_note_sleep(&F->note, next_ns < 0 ? -1 : next_ns > now_ns ? next_ns - now_ns : 0);
    }
}

static int gl_flusher_start(gl_flusher *F) {
    sigset_t all, before;
    gl_note_init(&F->note);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int e = pthread_create(&F->thread, NULL, gl_flusher_run, F);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return e;
}

/* Put a batch on the list; its owner has set `watched`. An errno if there is no thread to watch it. */
static int gl_flusher_watch(gl_flusher *F, gl_writes *b) {
    int e = 0;
    pthread_mutex_lock(&F->lock);
    if (F->stopping) e = EAGAIN;
    else if (!F->running) {
        e = gl_flusher_start(F);
        F->running = !e;
    }
    if (!e) {
        b->next = F->first;
        F->first = b;
    }
    pthread_mutex_unlock(&F->lock);
    if (!e) gl_note_wake(&F->note);
    return e;
}

/* Take a batch off the list: it is not touched any more when this returns. */
static void gl_flusher_forget(gl_flusher *F, gl_writes *b) {
    pthread_mutex_lock(&F->lock);
    for (gl_writes **at = &F->first; *at; at = &(*at)->next)
        if (*at == b) {
            *at = b->next;
            break;
        }
    b->watched = 0;
    pthread_mutex_unlock(&F->lock);
}

/* End the thread, if there is one, after it has sent all that waits. Before a fork: a child must not send it again, and a
 * process that forks should have no other threads. The next entry starts it again. */
static void gl_flusher_stop(gl_flusher *F) {
    pthread_mutex_lock(&F->lock);
    int mine = F->running && !F->stopping;
    if (mine) F->stopping = 1;
    pthread_mutex_unlock(&F->lock);
    if (!mine) return;
    gl_note_wake(&F->note);
    pthread_join(F->thread, NULL);
    pthread_mutex_lock(&F->lock);
    F->running = F->stopping = 0;
    pthread_mutex_unlock(&F->lock);
}

/* In a child: there is no thread, and the list is the parent's. */
static void gl_flusher_after_fork(gl_flusher *F) {
    pthread_mutex_init(&F->lock, NULL);
    F->first = NULL;
    F->running = F->stopping = 0;
}

/* For the batch's owner. */

/* Append an entry; its index, or -1 without memory. *watch: whether gl_flusher_watch() has to be called. `out`, of a world
 * that moves: put there first, and its generation. */
static int gl_writes_add(gl_writes *b, int fd, const char *data, uint32_t len, gl_out *out, uint32_t gen, int *watch) {
    int64_t now_ns = b->n ? 0 : gl_now_ns();    /* only the owner changes n: it reads it without the lock */
    int at = -1;
    gl_lock(&b->lock);
    if (b->n == b->room) {
        uint32_t room = b->room ? 2 * b->room : 64;
        gl_send *more = (gl_send *)realloc(b->a, room * sizeof *more);
        if (more) {
            b->a = more;
            b->room = room;
        }
    }
    if (b->n < b->room) {
        if (!b->n) b->since_ns = now_ns;
        at = (int)b->n++;
        b->a[at] = (gl_send){ data, fd, len, GL_PENDING, gen, out };
        *watch = !b->watched;
        b->watched = 1;
    }
    gl_unlock(&b->lock);
    return at;
}

/* Give a pending entry other bytes, data NULL: take it away. GL_PENDING, or what sending it gave: then nothing is changed. */
static int gl_writes_change(gl_writes *b, int at, const char *data, uint32_t len) {
    gl_lock(&b->lock);
    gl_send *s = &b->a[at];
    int sent = s->sent;
    if (sent == GL_PENDING) {
        s->data = data;
        s->len = len;
    }
    gl_unlock(&b->lock);
    return sent;
}

/* Take all entries, against an empty array for the next turn. */
static uint32_t gl_writes_take(gl_writes *b, gl_send **a, uint32_t *room) {
    gl_send *empty = *a;
    uint32_t n, empty_room = *room;
    gl_lock(&b->lock);
    *a = b->a;
    *room = b->room;
    n = b->n;
    b->a = empty;
    b->room = empty_room;
    b->n = 0;
    b->turn++;
    gl_store_relaxed(&b->due, 0);
    gl_unlock(&b->lock);
    return n;
}

#endif
