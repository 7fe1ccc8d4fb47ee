/* Attributes that a type defines in C, without a look-up by name: the descriptor was looked up once. */
#ifndef GMPLOOP_DESCR_H
#define GMPLOOP_DESCR_H

#include <Python.h>

static inline PyObject *gl_get(PyObject *descriptor, PyObject *of) {
    return Py_TYPE(descriptor)->tp_descr_get(descriptor, of, (PyObject *)Py_TYPE(of));
}

#endif
