/* Memory of objects that are made and freed by the thousand: an M keeps what its thread freed of one type, for the next.
 *
 * gl_spare_alloc() and gl_spare_free() are a type's tp_alloc and tp_free. What is kept is no object: the collector does not
 * track it (who frees an object has untracked it before), nobody refers to it, and gl_spare_alloc() makes it an object of
 * the calling thread. Only the thread of the M touches its spares. Subclasses, other threads and a full stock use the
 * allocator itself; Ms are few and reused, and what they keep goes with the process.
 */
#ifndef GMPLOOP_SPARES_H
#define GMPLOOP_SPARES_H

#include <Python.h>
#include <string.h>
#include "schedtypes.h"

enum { GL_SPARES = 32 };        /* of one type for an M: what a turn has at once; guessed */

typedef struct { int n; PyObject *a[GL_SPARES]; } gl_spares;

static inline PyObject *gl_spare_new(gl_spares *s, PyTypeObject *type) {
    PyObject *o = s->a[--s->n];
    memset(o + 1, 0, (size_t)type->tp_basicsize - sizeof(PyObject));
    PyObject_Init(o, type);
    PyObject_GC_Track(o);
    return o;
}

static inline PyObject *gl_spare_alloc(gl_spares *s, PyTypeObject *only, PyTypeObject *type) {
    return s && s->n && type == only ? gl_spare_new(s, type) : PyType_GenericAlloc(type, 0);
}

static inline void gl_spare_free(gl_spares *s, PyTypeObject *only, void *o) {
    if (s && s->n < GL_SPARES && Py_TYPE((PyObject *)o) == only) s->a[s->n++] = (PyObject *)o;
    else PyObject_GC_Del(o);
}

#endif
