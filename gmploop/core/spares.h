/* Memory of objects that are made and freed by the thousand: an M keeps what its thread freed of one type, for the next.
 *
 * gl_spare_free() is a type's tp_free. What is kept is no object: the collector does not track it (who frees an object
 * has untracked it before), nobody refers to it, and gl_spare_copy() makes it an object of the calling thread. Only the
 * thread of the M touches its spares. Subclasses, other threads and a full stock use the allocator itself; Ms are few and
 * reused, and what they keep goes with the process.
 */
#ifndef GMPLOOP_SPARES_H
#define GMPLOOP_SPARES_H

#include <Python.h>
#include <string.h>
#include "schedtypes.h"

enum { GL_SPARES = 32 };        /* of one type for an M: what a turn has at once; guessed */

typedef struct { int n; PyObject *a[GL_SPARES]; } gl_spares;

/* A new object like `fresh`, which has just been made and holds references to None at most; NULL if there is no spare. */
static inline PyObject *gl_spare_copy(gl_spares *s, PyObject *fresh) {
    PyTypeObject *type = Py_TYPE(fresh);
    PyObject *o;
    if (!s || !s->n) return NULL;
    o = s->a[--s->n];
    memcpy(o + 1, fresh + 1, (size_t)type->tp_basicsize - sizeof(PyObject));
    PyObject_Init(o, type);
    PyObject_GC_Track(o);
    return o;
}

static inline void gl_spare_free(gl_spares *s, PyTypeObject *only, void *o) {
    if (PY_VERSION_HEX >= 0x030C0000            /* before, None is counted: a copy would have to */
            && s && s->n < GL_SPARES && Py_TYPE((PyObject *)o) == only)
        s->a[s->n++] = (PyObject *)o;
    else PyObject_GC_Del(o);
}

#endif
