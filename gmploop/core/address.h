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
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)a;
        if (!inet_ntop(AF_INET, &in->sin_addr, text, sizeof text)) return PyErr_SetFromErrno(PyExc_OSError);
        return Py_BuildValue("(si)", text, ntohs(in->sin_port));
    }
    if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)a;
        if (!inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof text)) return PyErr_SetFromErrno(PyExc_OSError);
        return Py_BuildValue("(siII)", text, ntohs(in->sin6_port), ntohl(in->sin6_flowinfo),
                             (unsigned int)in->sin6_scope_id);
    }
    return gl_unix_address((const struct sockaddr_un *)a, size);
}

#endif
