/* Exceptions by the C-API: the one that is set, as one object on every Python. */
#ifndef GMPLOOP_RAISED_H
#define GMPLOOP_RAISED_H

#include <Python.h>

/* The exception that is set, with its traceback, unset. */
static inline PyObject *gl_take_exception(void) {
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *t, *v, *tb;
    PyErr_Fetch(&t, &v, &tb);
    if (!t) return NULL;
    PyErr_NormalizeException(&t, &v, &tb);
    if (tb) PyException_SetTraceback(v, tb);
    Py_DECREF(t); Py_XDECREF(tb);
    return v;
#endif
}

/* Set it; takes the reference. What is being handled does not become its context. */
static inline void gl_set_exception(PyObject *exc) {
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(exc);
#else
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(exc)), exc, NULL);
#endif
}

/* Set again what was taken, as it was. */
static inline int gl_raise_again(PyObject *exc) {
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(exc)), Py_NewRef(exc), PyException_GetTraceback(exc));
    return -1;
}

#endif
