/* StopIteration with a value, by which an await that returns something ends: made, caught by the interpreter and freed
 * again at once, it takes a tenth to a fifth of what such an await takes. Here it is of a subclass whose memory is kept for
 * the next one (spares.h), and whose `args` are made when somebody asks. To all who look it is a StopIteration.
 *
 * Included by operation.pyx alone, for all modules.
 */
#ifndef GMPLOOP_STOP_H
#define GMPLOOP_STOP_H

#include "raised.h"
#include "spares.h"

typedef PyStopIterationObject gl_stop_error;

static gl_m *(*gl_stop_my_m)(void);
static PyObject *gl_fresh_stop;         /* NULL before Python 3.12, where nothing is kept */

#ifdef Py_GIL_DISABLED
static gl_spares *gl_my_stops(void) {
    gl_m *mp = gl_stop_my_m();
    if (!mp) return NULL;
    if (!mp->stops) mp->stops = calloc(1, sizeof(gl_spares));
    return (gl_spares *)mp->stops;
}
#else
static gl_spares *gl_my_stops(void) {
    static gl_spares all;
    return &all;
}
#endif

static PyTypeObject *gl_stop_base(void) { return (PyTypeObject *)PyExc_StopIteration; }

/* Before anybody looks at them. */
static int gl_stop_fill(gl_stop_error *e) {
    PyObject *args;
    if (PyTuple_GET_SIZE(e->args) || !e->value) return 0;
    if (!(args = PyTuple_Pack(1, e->value))) return -1;
    Py_SETREF(e->args, args);
    return 0;
}

static PyObject *gl_stop_str(PyObject *o) { return gl_stop_fill((gl_stop_error *)o) ? NULL : gl_stop_base()->tp_str(o); }
static PyObject *gl_stop_repr(PyObject *o) { return gl_stop_fill((gl_stop_error *)o) ? NULL : gl_stop_base()->tp_repr(o); }
static PyObject *gl_stop_args(PyObject *o, void *unused) {
    (void)unused;
    return gl_stop_fill((gl_stop_error *)o) ? NULL : Py_NewRef(((gl_stop_error *)o)->args);
}
static int gl_stop_set_args(PyObject *o, PyObject *value, void *unused) {
    (void)unused;
    if (!value) {
        PyErr_SetString(PyExc_TypeError, "args may not be deleted");
        return -1;
    }
    PyObject *args = PySequence_Tuple(value);
    if (!args) return -1;
    Py_SETREF(((gl_stop_error *)o)->args, args);
    return 0;
}
static PyObject *gl_stop_reduce(PyObject *o, PyObject *unused) {
    (void)unused;
    return gl_stop_fill((gl_stop_error *)o) ? NULL : PyTuple_Pack(2, PyExc_StopIteration, ((gl_stop_error *)o)->args);
}

static void gl_stop_dealloc(PyObject *o) {
    gl_stop_error *e = (gl_stop_error *)o, *fresh = (gl_stop_error *)gl_fresh_stop;
    PyObject *value = e->value;
    gl_spares *s;
    if (e->args != fresh->args || e->traceback || e->context || e->cause || e->dict || e->notes
            || !(s = gl_my_stops()) || s->n == GL_SPARES) {
        gl_stop_base()->tp_dealloc(o);
        return;
    }
    PyObject_GC_UnTrack(o);
    e->value = NULL;
    s->a[s->n++] = o;
    Py_XDECREF(value);
}

static PyGetSetDef gl_stop_getset[] = {{"args", gl_stop_args, gl_stop_set_args, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};
static PyMethodDef gl_stop_methods[] = {{"__reduce__", gl_stop_reduce, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyTypeObject gl_stop_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "StopIteration", .tp_basicsize = sizeof(gl_stop_error), .tp_flags = Py_TPFLAGS_DEFAULT, .tp_dealloc = gl_stop_dealloc,
    .tp_str = gl_stop_str, .tp_repr = gl_stop_repr, .tp_getset = gl_stop_getset, .tp_methods = gl_stop_methods,
};

/* Before the first gl_stop_iteration(). -1: an exception is set. */
static int gl_stop_begin(gl_m *(*my_m)(void)) {
    gl_stop_my_m = my_m;
    if (PY_VERSION_HEX < 0x030C0000) return 0;
    gl_stop_type.tp_base = gl_stop_base();
    if (PyType_Ready(&gl_stop_type) < 0) return -1;
    PyObject *args = PyTuple_New(0);
    if (!args) return -1;
    gl_fresh_stop = gl_stop_type.tp_new(&gl_stop_type, args, NULL);
    Py_DECREF(args);
    return gl_fresh_stop ? 0 : -1;
}

/* Ends an iterator with a value: NULL, and StopIteration unless the value is None. */
static PyObject *gl_stop_iteration(PyObject *value) {
    PyTypeObject *type = gl_stop_base();
    PyObject *args, *exc;
    if (value == Py_None) return NULL;
    if (gl_fresh_stop) {
        exc = gl_spare_copy(gl_my_stops(), gl_fresh_stop);
        if (!exc) exc = gl_stop_type.tp_new(&gl_stop_type, ((gl_stop_error *)gl_fresh_stop)->args, NULL);
    } else {
        if (!(args = PyTuple_Pack(1, value))) return NULL;
        exc = type->tp_new(type, args, NULL);       /* its tp_init would set `value`, and look for it in args */
        Py_DECREF(args);
    }
    if (exc) {
        ((gl_stop_error *)exc)->value = Py_NewRef(value);
        gl_set_exception(exc);
    }
    return NULL;
}

#endif
