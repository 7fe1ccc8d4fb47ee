from gmploop.core.g cimport G, gl_ring
from gmploop.core.poller cimport Watch, Poller, uint32_t

cdef class SocketTransport(Watch):
    cdef object sock
    cdef object protocol
    cdef object server
    cdef dict extra
    cdef object context             # of reads: a copy of the creator's
    cdef object waiter              # told once connection_made has run
    cdef object empty_waiter        # sendfile waits for an empty buffer
    cdef object __weakref__
    cdef gl_ring wbuf               # exact bytes objects, each a reference
    cdef Py_ssize_t woff            # bytes of the first chunk that are sent
    cdef Py_ssize_t wsize           # bytes unsent
    cdef Py_ssize_t high, low
    cdef int conn_lost              # connection_lost is scheduled, or has run; further counts are writes after it
    cdef bint protocol_paused, closing, paused, eof_sent, eof_got, buffered
    cdef bint drained               # the last read emptied the socket and no event has come since
    cdef bint started
    cdef bint hangup                # the peer has shut down: after the data comes the end
    cdef int start(self) except -1
    cdef int read_data(self) except -1
    cdef int read_buffered(self) except -1
    cdef int on_eof(self) except -1
    cdef int after_read(self, Py_ssize_t n, Py_ssize_t asked) except -1
    cdef int read_failed(self) except -1
    cdef int flush(self) except -1
    cdef int clear_wbuf(self) except -1
    cdef int keep(self, object data, Py_ssize_t offset) except -1
    cdef int arm_write(self) except -1
    cdef int maybe_pause(self) except -1
    cdef int maybe_resume(self) except -1
    cdef int call_lost(self, object exc) except -1
    cdef int force_close(self, object exc) except -1
    cdef int fatal(self, object exc, str message) except -1
    cdef int sent(self, Py_ssize_t n) except -1
    cdef int write_failed(self) except -1
    cdef int shutdown_write(self) except -1
    cdef object context_run(self, fn)
    cdef bint foreign(self)
    cdef int here(self, str what) except -1
    cdef int may_write(self, str what) except -1
    cdef bint lost(self) except -1
    cdef Py_ssize_t send_now(self, object data) except -2
