/* Waiters: where one begins whose state word is known, and memory for the next one; two are made for each item that goes
 * from one goroutine to another (spares.h).
 */
#ifndef GMPLOOP_WAITERS_H
#define GMPLOOP_WAITERS_H

#include "spares.h"
#include <stddef.h>

/* From a node, which knows the state word of its waiter, to the waiter: the word is a field of the object. */
#define gl_waiter_of(n) \
    ((PyObject *)((char *)gl_wait_state(n) - offsetof(struct __pyx_obj_7gmploop_4core_4wait_Wait, node.state)))

#ifdef Py_GIL_DISABLED
#define gl_count(p, n) __atomic_fetch_add((p), (n), __ATOMIC_RELAXED)
#else
#define gl_count(p, n) (*(p) += (n))
#endif
static PyTypeObject *gl_waiter_type;
static gl_m *(*gl_my_m)(void);
static gl_spares *gl_my_waiters(void) {
    gl_m *mp = gl_my_m();
    if (!mp) return NULL;
    if (!mp->waiters) mp->waiters = calloc(1, sizeof(gl_spares));
    return (gl_spares *)mp->waiters;
}
static PyObject *gl_fresh_waiter;
static PyObject *gl_new_waiter(PyObject *no_args) {
    PyObject *o = gl_spare_copy(gl_my_waiters(), gl_fresh_waiter);
    return o ? o : gl_waiter_type->tp_new(gl_waiter_type, no_args, NULL);
}
static void gl_free_waiter(void *o) { gl_spare_free(gl_my_waiters(), gl_waiter_type, o); }
static void gl_keep_waiters(PyTypeObject *type, PyObject *fresh, gl_m *(*my_m)(void)) {
    gl_my_m = my_m;
    gl_fresh_waiter = Py_NewRef(fresh);
    gl_waiter_type = type;
    type->tp_free = gl_free_waiter;
}

#endif
