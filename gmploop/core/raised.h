/* Exceptions by the C-API: the one that is set, as one object on every Python; and the end of an iterator. */
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

/* Set again what was taken, as it was. */
static inline int gl_raise_again(PyObject *exc) {
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(exc)), Py_NewRef(exc), PyException_GetTraceback(exc));
    return -1;
}

/* Ends an iterator with a value: NULL, and StopIteration unless the value is None. Those that would be taken for its
   arguments are wrapped. */
static inline PyObject *gl_stop_iteration(PyObject *value) {
    if (value == Py_None) return NULL;
    if (!PyTuple_Check(value) && !PyExceptionInstance_Check(value)) {
        PyErr_SetObject(PyExc_StopIteration, value);
        return NULL;
    }
    PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, value);
    if (stop) {
        PyErr_SetObject(PyExc_StopIteration, stop);
        Py_DECREF(stop);
    }
    return NULL;
}

#endif
