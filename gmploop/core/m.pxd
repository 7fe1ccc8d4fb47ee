from gmploop.core.g cimport gl_g
from gmploop.core.sched cimport gl_m

cdef int run(gl_m *mp) except -1
cdef int execute(gl_m *mp, gl_g *gp) except -1
