/* One io_uring by raw system calls: set up, submit, look at completions, tear down.
 *
 * The numbers and layouts are the kernel's ABI (io_uring_setup(2), io_uring_enter(2), io_uring_register(2)). They stand
 * here so that no library and no kernel header is needed to build; what the running kernel has is asked at run time.
 *
 * A ring belongs to one thread at a time. The kernel reads the submission tail and writes the completion tail; each
 * ordered access below pairs with the kernel's own. Functions return >= 0, or -errno.
 *
 *     sq_head (kernel) <= sq_tail (published) <= tail (filled)         entries in between are queued, the kernel's
 *                                                                      after an enter() that took them
 */
#ifndef GMPLOOP_URING_H
#define GMPLOOP_URING_H

#include "atomics.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifndef ETIME                               /* systems that have no ring either */
#define ETIME 62
#endif

typedef struct {
    uint8_t opcode, flags;
    uint16_t ioprio;
    int32_t fd;
    uint64_t off, addr;
    uint32_t len, op_flags;
    uint64_t user_data;
    uint16_t buf_index, personality;
    int32_t splice_fd;
    uint64_t addr3, unused;
} gl_sqe;

typedef struct { uint64_t user_data; int32_t res; uint32_t flags; } gl_cqe;

typedef struct {
    uint32_t head, tail, mask, entries, flags, dropped, array, unused;
    uint64_t user_addr;
} gl_sq_offsets;

typedef struct {
    uint32_t head, tail, mask, entries, overflow, cqes, flags, unused;
    uint64_t user_addr;
} gl_cq_offsets;

typedef struct {
    uint32_t sq_entries, cq_entries, flags, sq_thread_cpu, sq_thread_idle, features, wq_fd, unused[3];
    gl_sq_offsets sq;
    gl_cq_offsets cq;
} gl_uring_params;

enum {
    GL_OP_FSYNC = 3, GL_OP_POLL_ADD = 6, GL_OP_ACCEPT = 13, GL_OP_ASYNC_CANCEL = 14, GL_OP_OPENAT = 18, GL_OP_CLOSE = 19,
    GL_OP_READ = 22, GL_OP_WRITE = 23, GL_OP_SEND = 26, GL_OP_RECV = 27, GL_OP_FTRUNCATE = 55, GL_OP_EPOLL_WAIT = 59, GL_OPS = 64,
    GL_SQE_ASYNC = 1 << 4,                  /* IOSQE_ASYNC: a worker does it from the start */
    GL_SQE_BUFFER_SELECT = 1 << 5, GL_SQE_SKIP_SUCCESS = 1 << 6,
    GL_ACCEPT_MULTISHOT = 1 << 0, GL_RECV_MULTISHOT = 1 << 1,   /* in ioprio */
    GL_CANCEL_ALL = 1 << 0, GL_CANCEL_ANY = 1 << 2,
    GL_CQE_BUFFER = 1 << 0, GL_CQE_MORE = 1 << 1, GL_CQE_BUFFER_SHIFT = 16,
    GL_SETUP_CQSIZE = 1 << 3, GL_SETUP_CLAMP = 1 << 4, GL_SETUP_SUBMIT_ALL = 1 << 7, GL_SETUP_COOP_TASKRUN = 1 << 8,
    GL_SETUP_TASKRUN_FLAG = 1 << 9, GL_SETUP_SINGLE_ISSUER = 1 << 12, GL_SETUP_DEFER_TASKRUN = 1 << 13,
    GL_FEAT_SINGLE_MMAP = 1 << 0, GL_FEAT_NODROP = 1 << 1, GL_FEAT_RW_CUR_POS = 1 << 3, GL_FEAT_EXT_ARG = 1 << 8,
    GL_FEAT_NO_IOWAIT = 1 << 17,
    GL_ENTER_GETEVENTS = 1 << 0, GL_ENTER_EXT_ARG = 1 << 3, GL_ENTER_NO_IOWAIT = 1 << 7,
    GL_REGISTER_EVENTFD = 4, GL_UNREGISTER_EVENTFD = 5, GL_REGISTER_PROBE = 8, GL_REGISTER_PBUF_RING = 22,
    GL_SQ_CQ_OVERFLOW = 1 << 1, GL_SQ_TASKRUN = 1 << 2,
};

typedef struct {
    int fd;                                 /* -1: there is none */
    uint32_t features, setup_flags;
    uint32_t tail;                          /* entries filled; published as *sq_tail by gl_uring_submit */
    uint32_t sq_entries, sq_mask, cq_entries, cq_mask;
    uint32_t *sq_head, *sq_tail, *sq_flags, *cq_head, *cq_tail;
    gl_sqe *sqes;
    gl_cqe *cqes;
    void *rings;
    size_t rings_size, sqes_size;
    uint8_t has_op[GL_OPS];
} gl_uring;

#if defined(__linux__)

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int gl_uring_setup(unsigned entries, gl_uring_params *p) {
    long r = syscall(425, entries, p);      /* the same number on every architecture, as are 426 and 427 */
    return r < 0 ? -errno : (int)r;
}

static inline int gl_uring_enter(gl_uring *r, unsigned submit, unsigned wait, unsigned flags) {
    long n = syscall(426, r->fd, submit, wait, flags, NULL, 0);
    return n < 0 ? -errno : (int)n;
}

static inline int gl_uring_register(gl_uring *r, unsigned what, void *arg, unsigned n) {
    long e = syscall(427, r->fd, what, arg, n);
    return e < 0 ? -errno : (int)e;
}

/* Let go of the ring without a word to the kernel's queues: right for a child that shares its parent's ring, too. */
static inline void gl_uring_free(gl_uring *r) {
    if (r->sqes) munmap(r->sqes, r->sqes_size);
    if (r->rings) munmap(r->rings, r->rings_size);
    if (r->fd >= 0) close(r->fd);
    memset(r, 0, sizeof *r);
    r->fd = -1;
}

static inline int gl_uring_probe(gl_uring *r) {
    struct { uint8_t last, len; uint16_t unused; uint32_t unused2[3];
             struct { uint8_t op, unused; uint16_t flags; uint32_t unused2; } ops[GL_OPS]; } probe;
    memset(&probe, 0, sizeof probe);
    int e = gl_uring_register(r, GL_REGISTER_PROBE, &probe, GL_OPS);
    if (e < 0) return e;
    for (int i = 0; i < GL_OPS && i < probe.len; i++)
        r->has_op[probe.ops[i].op & (GL_OPS - 1)] = probe.ops[i].flags & 1;
    return 0;
}

static inline int gl_uring_map(gl_uring *r, gl_uring_params *p) {
    size_t sq = p->sq.array + p->sq_entries * sizeof(uint32_t);
    size_t cq = p->cq.cqes + p->cq_entries * sizeof(gl_cqe);
    r->rings_size = sq > cq ? sq : cq;
    void *m = mmap(NULL, r->rings_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, 0);
    if (m == MAP_FAILED) return -errno;
    r->rings = m;
    r->sqes_size = p->sq_entries * sizeof(gl_sqe);
    m = mmap(NULL, r->sqes_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, 0x10000000);
    if (m == MAP_FAILED) return -errno;
    r->sqes = (gl_sqe *)m;
    char *base = (char *)r->rings;
    r->sq_head = (uint32_t *)(base + p->sq.head);
    r->sq_tail = (uint32_t *)(base + p->sq.tail);
    r->sq_flags = (uint32_t *)(base + p->sq.flags);
    r->cq_head = (uint32_t *)(base + p->cq.head);
    r->cq_tail = (uint32_t *)(base + p->cq.tail);
    r->cqes = (gl_cqe *)(base + p->cq.cqes);
    r->sq_entries = p->sq_entries;
    r->sq_mask = *(uint32_t *)(base + p->sq.mask);
    r->cq_entries = p->cq_entries;
    r->cq_mask = *(uint32_t *)(base + p->cq.mask);
    r->tail = *r->sq_tail;
    uint32_t *array = (uint32_t *)(base + p->sq.array);
    for (uint32_t i = 0; i < p->sq_entries; i++)
        array[i] = i;                       /* entry i is always sqes[i] */
    return 0;
}

static inline int gl_uring_open_as(gl_uring *r, unsigned entries, unsigned cq_entries, const uint32_t *tries, int n) {
    gl_uring_params p;
    int e = -EINVAL;
    memset(r, 0, sizeof *r);
    r->fd = -1;
    for (int i = 0; i < n && e == -EINVAL; i++) {
        memset(&p, 0, sizeof p);
        p.flags = tries[i] | GL_SETUP_CQSIZE | GL_SETUP_CLAMP;
        p.cq_entries = cq_entries;
        e = gl_uring_setup(entries, &p);
    }
    if (e < 0) return e;
    r->fd = e;
    r->features = p.features;
    r->setup_flags = p.flags;
    const uint32_t needed = GL_FEAT_SINGLE_MMAP | GL_FEAT_NODROP | GL_FEAT_RW_CUR_POS;
    e = (p.features & needed) != needed ? -ENOSYS : gl_uring_probe(r);      /* before Linux 5.6 */
    if (e >= 0) e = gl_uring_map(r, &p);
    if (e >= 0) e = gl_uring_enter(r, 0, 0, 0);     /* a filter may refuse this one alone */
    if (e < 0) gl_uring_free(r);
    return e;
}

/* A ring that any thread may go on with. Setup flags that an older kernel does not know are left out. */
static inline int gl_uring_open(gl_uring *r, unsigned entries, unsigned cq_entries) {
    static const uint32_t tries[] = { GL_SETUP_COOP_TASKRUN | GL_SETUP_SUBMIT_ALL, 0 };
    return gl_uring_open_as(r, entries, cq_entries, tries, 2);
}

/* A ring for the calling thread alone: whatever the kernel has to do for it is done inside this thread's enters, and
 * nowhere else. All other threads get EEXIST. -EINVAL before Linux 6.1. */
static inline int gl_uring_open_own(gl_uring *r, unsigned entries, unsigned cq_entries) {
    static const uint32_t tries[] = {
        GL_SETUP_SINGLE_ISSUER | GL_SETUP_DEFER_TASKRUN | GL_SETUP_TASKRUN_FLAG | GL_SETUP_SUBMIT_ALL };
    int e = gl_uring_open_as(r, entries, cq_entries, tries, 1);
    if (e >= 0 && !(r->features & GL_FEAT_EXT_ARG)) gl_uring_free(r), e = -ENOSYS;
    return e;
}

/* Give `submit` queued entries to the kernel and wait for a completion, at most delay_ns (< 0: for ever, 0: no wait).
 * Entries taken, or -errno; -ETIME when time was over. A signal during the wait is told as -EINTR only if no entry was
 * taken. */
static inline int gl_uring_wait(gl_uring *r, unsigned submit, long long delay_ns) {
    struct { int64_t sec; int64_t nsec; } t = { delay_ns / 1000000000, delay_ns % 1000000000 };
    struct { uint64_t sigmask; uint32_t sigmask_size, min_wait_us; uint64_t ts; } arg = { 0, 0, 0, (uintptr_t)&t };
    unsigned flags = GL_ENTER_GETEVENTS | (r->features & GL_FEAT_NO_IOWAIT ? GL_ENTER_NO_IOWAIT : 0);
    if (delay_ns <= 0) return gl_uring_enter(r, submit, delay_ns < 0, flags);
    long n = syscall(426, r->fd, submit, 1, flags | GL_ENTER_EXT_ARG, &arg, sizeof arg);
    return n < 0 ? -errno : (int)n;
}

#else  /* not Linux: there is no ring, and nothing below is reached */

static inline int gl_uring_open(gl_uring *r, unsigned entries, unsigned cq_entries) {
    (void)entries; (void)cq_entries;
    memset(r, 0, sizeof *r);
    r->fd = -1;
    return -ENOSYS;
}
static inline int gl_uring_open_own(gl_uring *r, unsigned entries, unsigned cq_entries) {
    return gl_uring_open(r, entries, cq_entries);
}
static inline int gl_uring_wait(gl_uring *r, unsigned submit, long long delay_ns) {
    (void)r; (void)submit; (void)delay_ns;
    return -ENOSYS;
}
static inline int gl_uring_enter(gl_uring *r, unsigned submit, unsigned wait, unsigned flags) {
    (void)r; (void)submit; (void)wait; (void)flags;
    return -ENOSYS;
}
static inline int gl_uring_register(gl_uring *r, unsigned what, void *arg, unsigned n) {
    (void)r; (void)what; (void)arg; (void)n;
    return -ENOSYS;
}
static inline void gl_uring_free(gl_uring *r) { r->fd = -1; }

#endif

/* Entries that are filled and that the kernel has not taken. Acquire: what it has taken may be written again. */
static inline uint32_t gl_uring_queued(gl_uring *r) { return r->tail - gl_load_acquire(r->sq_head); }

/* The next free entry, cleared; NULL when the queue is full. */
static inline gl_sqe *gl_uring_sqe(gl_uring *r) {
    if (gl_uring_queued(r) >= r->sq_entries) return NULL;
    gl_sqe *e = &r->sqes[r->tail++ & r->sq_mask];
    memset(e, 0, sizeof *e);
    return e;
}

/* Give all queued entries to the kernel. 0: all taken. -errno: it took some or none; they stay queued. */
static inline int gl_uring_submit(gl_uring *r) {
    uint32_t n;
    gl_store_release(r->sq_tail, r->tail);  /* pairs with the kernel's acquire of the tail */
    while ((n = gl_uring_queued(r))) {
        int took = gl_uring_enter(r, n, 0, 0);
        if (took == -EINTR) continue;
        if (took < 0) return took;
        if (took == 0) return -EAGAIN;
    }
    return 0;
}

/* Have workers do all queued operations from the start, cancels excepted. */
static inline void gl_uring_make_async(gl_uring *r) {
    for (uint32_t i = r->tail - gl_uring_queued(r); i != r->tail; i++) {
        gl_sqe *e = &r->sqes[i & r->sq_mask];
        if (e->opcode != GL_OP_ASYNC_CANCEL) e->flags |= GL_SQE_ASYNC;
    }
}

/* The i-th of the entries that the kernel has not taken. */
static inline gl_sqe *gl_uring_queued_at(gl_uring *r, uint32_t i) {
    return &r->sqes[(r->tail - gl_uring_queued(r) + i) & r->sq_mask];
}

/* Whether completions wait in the kernel because the queue was full. */
static inline int gl_uring_overflowed(gl_uring *r) { return gl_load_relaxed(r->sq_flags) & GL_SQ_CQ_OVERFLOW; }

/* Take back the newest entry that the kernel has not taken; its user_data, or 0 when there is none. */
static inline uint64_t gl_uring_take_back(gl_uring *r) {
    if (!gl_uring_queued(r)) return 0;
    uint64_t data = r->sqes[--r->tail & r->sq_mask].user_data;
    gl_store_release(r->sq_tail, r->tail);
    return data;
}

/* Copy the oldest completion and make its place free; 0 when there is none. */
static inline int gl_uring_next(gl_uring *r, gl_cqe *out) {
    uint32_t head = *r->cq_head;            /* only we write it */
    if (head == gl_load_acquire(r->cq_tail)) return 0;      /* pairs with the kernel's release of the tail */
    *out = r->cqes[head & r->cq_mask];
    gl_store_release(r->cq_head, head + 1); /* pairs with the kernel's acquire: the place may be written again */
    return 1;
}

/* Publish what is filled; the number of entries that an enter has to take. */
static inline uint32_t gl_uring_publish(gl_uring *r) {
    gl_store_release(r->sq_tail, r->tail);  /* pairs with the kernel's acquire of the tail */
    return gl_uring_queued(r);
}

/* Whether completions have come that gl_uring_next() has not given out. */
static inline int gl_uring_ready(gl_uring *r) { return *r->cq_head != gl_load_acquire(r->cq_tail); }

/* Whether completions wait in the kernel for an enter() that asks for them. */
static inline int gl_uring_more_inside(gl_uring *r) {
    return gl_load_relaxed(r->sq_flags) & (GL_SQ_CQ_OVERFLOW | GL_SQ_TASKRUN);
}

/* Buffers that receives take from by themselves ("provided buffer ring", Linux 5.19), all of one size.
 * We write entries and tail, the kernel its own head. Who owns a buffer: the kernel while it lies in the ring, and from
 * the completion that names it until gl_bufs_return() we do. The kernel fills none before an enter of ours. */
typedef struct { uint64_t addr; uint32_t len; uint16_t bid, tail; } gl_buf;     /* `tail` counts in the first one only */

typedef struct {
    gl_buf *ring;
    char *bytes;
    uint32_t count, size;                   /* count: a power of two */
    uint16_t tail;
} gl_bufs;

static inline char *gl_bufs_at(gl_bufs *b, unsigned id) { return b->bytes + (size_t)(id & (b->count - 1)) * b->size; }

static inline void gl_bufs_return(gl_bufs *b, unsigned id) {
    gl_buf *e = &b->ring[b->tail & (b->count - 1)];
    e->addr = (uintptr_t)gl_bufs_at(b, id);
    e->len = b->size;
    e->bid = (uint16_t)id;
    gl_store_release(&b->ring[0].tail, ++b->tail);      /* pairs with the kernel's acquire of the tail */
}

static inline void gl_bufs_free(gl_bufs *b) {       /* after gl_uring_free() */
    free(b->ring);
    free(b->bytes);
    memset(b, 0, sizeof *b);
}

/* Group 0 of the ring. Pages of `bytes` that nothing was received into cost no memory. */
static inline int gl_bufs_open(gl_bufs *b, gl_uring *r, unsigned count, unsigned size) {
    struct { uint64_t ring; uint32_t entries; uint16_t group, flags; uint64_t unused[3]; } reg;
    void *ring = NULL;
    memset(b, 0, sizeof *b);
    if (posix_memalign(&ring, 65536, count * sizeof(gl_buf))) return -ENOMEM;   /* a page's size, at most */
    memset(ring, 0, count * sizeof(gl_buf));
    b->ring = (gl_buf *)ring;
    b->bytes = (char *)malloc((size_t)count * size);
    b->count = count;
    b->size = size;
    memset(&reg, 0, sizeof reg);
    reg.ring = (uintptr_t)ring;
    reg.entries = count;
    int e = b->bytes ? gl_uring_register(r, GL_REGISTER_PBUF_RING, &reg, 1) : -ENOMEM;
    if (e < 0) {
        gl_bufs_free(b);
        return e;
    }
    for (unsigned i = 0; i < count; i++) gl_bufs_return(b, i);
    return 0;
}

#endif
