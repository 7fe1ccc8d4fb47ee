/* Socket addresses as the socket module gives them. */
#ifndef GMPLOOP_ADDRESS_H
#define GMPLOOP_ADDRESS_H

#include <Python.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <netinet/in.h>
#include <arpa/inet.h>

static char *gl_digits(char *p, unsigned byte) {
    if (byte >= 100) { *p++ = (char)('0' + byte / 100); byte %= 100; *p++ = (char)('0' + byte / 10); byte %= 10; }
    else if (byte >= 10) { *p++ = (char)('0' + byte / 10); byte %= 10; }
    *p++ = (char)('0' + byte);
    return p;
}

/* (host, port). By hand: inet_ntop() and Py_BuildValue() take five times as long, and each datagram has one. */
static PyObject *gl_address4(const struct sockaddr_in *in) {
    const unsigned char *b = (const unsigned char *)&in->sin_addr;
    char text[16], *p = text;
    PyObject *host, *port, *pair;
    for (int i = 0; i < 4; i++) {
        if (i) *p++ = '.';
        p = gl_digits(p, b[i]);
    }
    host = PyUnicode_FromStringAndSize(text, p - text);
    port = PyLong_FromLong(ntohs(in->sin_port));
    pair = host && port ? PyTuple_New(2) : NULL;
    if (!pair) { Py_XDECREF(host); Py_XDECREF(port); return NULL; }
    PyTuple_SET_ITEM(pair, 0, host);
    PyTuple_SET_ITEM(pair, 1, port);
    return pair;
}

/* Of Unix sockets: a path, an abstract name (bytes), or nothing. */
static PyObject *gl_unix_address(const struct sockaddr_un *a, socklen_t size) {
    Py_ssize_t n = (Py_ssize_t)size - (Py_ssize_t)offsetof(struct sockaddr_un, sun_path);
    if (n <= 0) return PyUnicode_FromStringAndSize(NULL, 0);
#ifdef __linux__
    if (a->sun_path[0] == 0) return PyBytes_FromStringAndSize(a->sun_path, n);
#endif
    return PyUnicode_DecodeFSDefaultAndSize(a->sun_path, (Py_ssize_t)strnlen(a->sun_path, (size_t)n));
}

/* Of Internet and Unix sockets. None where there is none: size 0. */
static PyObject *gl_address(const struct sockaddr_storage *a, socklen_t size) {
    char text[INET6_ADDRSTRLEN];
    if (size == 0) Py_RETURN_NONE;
    if (a->ss_family == AF_INET) return gl_address4((const struct sockaddr_in *)a);
    if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)a;
        if (!inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof text)) return PyErr_SetFromErrno(PyExc_OSError);
        return Py_BuildValue("(siII)", text, ntohs(in->sin6_port), ntohl(in->sin6_flowinfo),
                             (unsigned int)in->sin6_scope_id);
    }
    return gl_unix_address((const struct sockaddr_un *)a, size);
}

static int gl_small(PyObject *number, unsigned long most, unsigned long *value) {
    int beyond;
    long n;
    if (!PyLong_CheckExact(number)) return 0;
    n = PyLong_AsLongAndOverflow(number, &beyond);
    *value = (unsigned long)n;
    return !beyond && n >= 0 && (unsigned long)n <= most;
}

/* The other way: whether it is an Internet address in numbers, a tuple as the socket module gives them, and then as the
 * kernel takes it. 0 without an error for all others (names, scopes by name, what is no address). */
static int gl_plain_address(int family, PyObject *address, struct sockaddr_storage *a, socklen_t *size) {
    unsigned long port, flow = 0, scope = 0;
    Py_ssize_t n = PyTuple_CheckExact(address) ? PyTuple_GET_SIZE(address) : 0, len;
    const char *host;
    if (n != 2 && !(n == 4 && family == AF_INET6)) return 0;
    if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(address, 0)) || !gl_small(PyTuple_GET_ITEM(address, 1), 0xffff, &port)
        || (n == 4 && (!gl_small(PyTuple_GET_ITEM(address, 2), 0xfffff, &flow)
                       || !gl_small(PyTuple_GET_ITEM(address, 3), 0xffffffff, &scope)))) return 0;
    host = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(address, 0), &len);
    if (!host) { PyErr_Clear(); return 0; }
    if (len >= INET6_ADDRSTRLEN || memchr(host, 0, (size_t)len)) return 0;
    if (family == AF_INET) {
        struct sockaddr_in *in = (struct sockaddr_in *)a;
        memset(in, 0, *size = sizeof *in);
        in->sin_family = AF_INET;
        in->sin_port = htons((uint16_t)port);
        return inet_pton(AF_INET, host, &in->sin_addr) == 1;
    }
    if (family == AF_INET6) {
        struct sockaddr_in6 *in = (struct sockaddr_in6 *)a;
        memset(in, 0, *size = sizeof *in);
        in->sin6_family = AF_INET6;
        in->sin6_port = htons((uint16_t)port);
        in->sin6_flowinfo = htonl((uint32_t)flow);
        in->sin6_scope_id = (uint32_t)scope;
        return inet_pton(AF_INET6, host, &in->sin6_addr) == 1;
    }
    return 0;
}

#endif
