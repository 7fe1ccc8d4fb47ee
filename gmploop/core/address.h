/* Socket addresses as the socket module gives them. */
#ifndef GMPLOOP_ADDRESS_H
#define GMPLOOP_ADDRESS_H

#include <sys/socket.h>
#include <netinet/in.h>
#include <arpa/inet.h>

/* NULL without an error where only the socket module knows how. */
static PyObject *gl_address(const struct sockaddr_storage *a) {
    char text[INET6_ADDRSTRLEN];
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)a;
        if (!inet_ntop(AF_INET, &in->sin_addr, text, sizeof text)) return NULL;
        return Py_BuildValue("(si)", text, ntohs(in->sin_port));
    }
    if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)a;
        if (!inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof text)) return NULL;
        return Py_BuildValue("(siII)", text, ntohs(in->sin6_port), ntohl(in->sin6_flowinfo),
                             (unsigned int)in->sin6_scope_id);
    }
    return NULL;
}

#endif
