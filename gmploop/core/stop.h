/* StopIteration with a value, by which an await that returns something ends: made, caught by the interpreter and freed again
 * at once. That is a tenth of the instructions of such an await, so here it is of a subclass whose memory is kept for the
 * next one (spares.h), and whose `args` are made when somebody looks at them.
 *
 * To all who look it is a StopIteration, but for who asks whether its type is that very one. Debuggers do, so as not to
 * stop at awaits: a traced thread gets Python's own. From 3.14 on they may see exceptions by sys.monitoring, which cannot
 * be asked cheaply; before 3.12.2 Future.set_exception() asks, and before 3.12 None is counted (spares.h): there it is always
 * Python's own.
 *
 * Without the GIL each M has a stock of them, which its thread alone touches, and other threads have none. With it there is one
 * for all, which the GIL guards.
 *
 * Included by operation.pyx alone, for all modules.
 */
#ifndef GMPLOOP_STOP_H
#define GMPLOOP_STOP_H

#include "raised.h"
#include "spares.h"

enum { GL_STOPS_KEPT = PY_VERSION_HEX >= 0x030C0200 && PY_VERSION_HEX < 0x030E0000 };

typedef struct {
    PyStopIterationObject e;
    char lazy;                          /* args are not made yet: they are () in place of (value,) */
} gl_stop_error;

#ifndef Py_BEGIN_CRITICAL_SECTION
#define Py_BEGIN_CRITICAL_SECTION(o) {
#define Py_END_CRITICAL_SECTION() }
#endif

static gl_m *(*gl_stop_my_m)(void);
static PyObject *gl_fresh_stop;         /* NULL where nothing is kept */

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

/* Before anybody looks at them, which on free-threaded builds several may do at once. */
static int gl_stop_fill(gl_stop_error *s) {
    int failed = 0;
    Py_BEGIN_CRITICAL_SECTION((PyObject *)s);
    if (s->lazy && s->e.value) {
        PyObject *args = PyTuple_Pack(1, s->e.value);
        if (args) {
            Py_XSETREF(s->e.args, args);
            s->lazy = 0;
        } else failed = -1;
    }
    Py_END_CRITICAL_SECTION();
    return failed;
}

static PyObject *gl_stop_str(PyObject *o) { return gl_stop_fill((gl_stop_error *)o) ? NULL : gl_stop_base()->tp_str(o); }
static PyObject *gl_stop_repr(PyObject *o) { return gl_stop_fill((gl_stop_error *)o) ? NULL : gl_stop_base()->tp_repr(o); }
static PyObject *gl_stop_args(PyObject *o, void *unused) {
    PyObject *args = NULL;
    (void)unused;
    if (gl_stop_fill((gl_stop_error *)o)) return NULL;
    Py_BEGIN_CRITICAL_SECTION(o);
    args = Py_XNewRef(((gl_stop_error *)o)->e.args);
    Py_END_CRITICAL_SECTION();
    return args ? args : Py_NewRef(Py_None);
}
static int gl_stop_set_args(PyObject *o, PyObject *value, void *unused) {
    PyObject *args;
    (void)unused;
    if (!value) {
        PyErr_SetString(PyExc_TypeError, "args may not be deleted");
        return -1;
    }
    if (!(args = PySequence_Tuple(value))) return -1;
    Py_BEGIN_CRITICAL_SECTION(o);
    ((gl_stop_error *)o)->lazy = 0;
    Py_XSETREF(((gl_stop_error *)o)->e.args, args);
    Py_END_CRITICAL_SECTION();
    return 0;
}
static PyObject *gl_stop_reduce(PyObject *o, PyObject *unused) {
    PyObject *args = gl_stop_args(o, NULL), *dict = ((gl_stop_error *)o)->e.dict, *reduced;
    (void)unused;
    if (!args) return NULL;
    reduced = dict ? PyTuple_Pack(3, PyExc_StopIteration, args, dict) : PyTuple_Pack(2, PyExc_StopIteration, args);
    Py_DECREF(args);
    return reduced;
}

static void gl_stop_dealloc(PyObject *o) {
    gl_stop_error *s = (gl_stop_error *)o;
    PyObject *value = s->e.value;
    gl_spares *kept;
    if (!s->lazy || s->e.args != ((gl_stop_error *)gl_fresh_stop)->e.args || s->e.traceback || s->e.context || s->e.cause
            || s->e.dict || s->e.notes || !(kept = gl_my_stops()) || kept->n == GL_SPARES) {
        gl_stop_base()->tp_dealloc(o);
        return;
    }
    PyObject_GC_UnTrack(o);
    s->e.value = NULL;
    kept->a[kept->n++] = o;
    Py_XDECREF(value);
}

static PyGetSetDef gl_stop_getset[] = {{"args", gl_stop_args, gl_stop_set_args, NULL, NULL},
                                       {NULL, NULL, NULL, NULL, NULL}};
static PyMethodDef gl_stop_methods[] = {{"__reduce__", gl_stop_reduce, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyTypeObject gl_stop_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "StopIteration", .tp_basicsize = sizeof(gl_stop_error), .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = gl_stop_dealloc, .tp_str = gl_stop_str, .tp_repr = gl_stop_repr, .tp_getset = gl_stop_getset,
    .tp_methods = gl_stop_methods,
};

/* Before the first gl_stop_iteration(). -1: an exception is set. */
static int gl_stop_begin(gl_m *(*my_m)(void)) {
    PyObject *args;
    gl_stop_my_m = my_m;
    if (!GL_STOPS_KEPT) return 0;
    gl_stop_type.tp_base = gl_stop_base();
    if (PyType_Ready(&gl_stop_type) < 0 || !(args = PyTuple_New(0))) return -1;
    gl_fresh_stop = gl_stop_type.tp_new(&gl_stop_type, args, NULL);
    Py_DECREF(args);
    if (!gl_fresh_stop) return -1;
    ((gl_stop_error *)gl_fresh_stop)->lazy = 1;
    return 0;
}

static PyObject *gl_new_stop(PyObject *value) {
    PyTypeObject *type = gl_stop_base();
    PyObject *args, *exc;
    if (gl_fresh_stop && !PyThreadState_Get()->c_tracefunc) {
        exc = gl_spare_copy(gl_my_stops(), gl_fresh_stop);
        if (!exc) exc = gl_stop_type.tp_new(&gl_stop_type, ((gl_stop_error *)gl_fresh_stop)->e.args, NULL);
        if (exc) ((gl_stop_error *)exc)->lazy = 1;
        return exc;
    }
    if (!(args = PyTuple_Pack(1, value))) return NULL;
    exc = type->tp_new(type, args, NULL);       /* its tp_init would set `value`, and look for it in args */
    Py_DECREF(args);
    return exc;
}

/* Ends an iterator with a value: NULL, and StopIteration unless the value is None. */
static PyObject *gl_stop_iteration(PyObject *value) {
    PyObject *exc;
    if (value == Py_None || !(exc = gl_new_stop(value))) return NULL;
    ((PyStopIterationObject *)exc)->value = Py_NewRef(value);
    gl_set_exception(exc);
    return NULL;
}

#endif
