# waitq.h for Cython.
from libc.stdint cimport uint32_t
from gmploop.core.g cimport gl_ring

cdef extern from "waitq.h" nogil:
    enum: W_OUTCOME, W_PENDING, W_GRANTED, W_CLOSED, W_CANCELLED, W_EXPIRED, W_ARMED, W_TAKEN, W_INDEX_SHIFT
    enum: SYNC_DONE, SYNC_WAIT, SYNC_CLOSED, SYNC_NO_MEMORY
    enum: OP_RECV, OP_NEXT, OP_SEND, OP_PERMIT, OP_READ, OP_WRITE, OP_PASS
    ctypedef struct gl_waitq
    ctypedef struct gl_wnode:
        gl_wnode *next
        gl_wnode *link
        void *item
        int state
        uint32_t seq
        unsigned char op, wake, is_case, queued, stage, how, own, sent, blocking, delivered
    ctypedef struct gl_wcase:
        gl_wnode node
        int *state
        unsigned index
    int *gl_wait_state(gl_wnode *)
    unsigned gl_wait_index(gl_wnode *)
    ctypedef struct gl_waitq:
        gl_wnode *first
        size_t n
    ctypedef struct gl_chain:
        gl_wnode *first
        gl_wnode *spare
    ctypedef struct gl_chan:
        gl_waitq recvq, sendq, returned
        gl_ring buf
        size_t capacity
        int closed
    ctypedef struct gl_gate:
        gl_waitq q
        long long value
    int gl_wait_decide(int *, int, unsigned)
    bint gl_wait_arm(int *)
    unsigned gl_any_below(unsigned)
    bint gl_wait_take(int *)
    void gl_chain_add(gl_chain *, gl_wnode *, int)
    void gl_q_append(gl_waitq *, gl_wnode *)
    bint gl_q_remove(gl_waitq *, gl_wnode *)
    gl_wnode *gl_returned_pop(gl_waitq *)
    size_t gl_chan_len(gl_chan *)
    int gl_chan_recv(gl_chan *, void **, uint32_t *, gl_chain *)
    int gl_chan_send(gl_chan *, void *, gl_chain *)
    int gl_chan_restore(gl_chan *, gl_wnode *, gl_chain *)
    void gl_chan_close(gl_chan *, gl_chain *)
    int gl_gate_try(gl_gate *, int)
    void gl_gate_settle(gl_gate *, gl_chain *)
    int gl_gate_leave(gl_gate *, int, gl_chain *)
