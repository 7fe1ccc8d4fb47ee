/* gl_records: where the records of TLS that come in end (RFC 8446, 5.1). Plain C; of one connection, by one thread.
 *
 *     byte     0       1 2        3 4       5 ...
 *              type    version    length    `length` bytes, encrypted
 */
#ifndef GMPLOOP_RECORDS_H
#define GMPLOOP_RECORDS_H

#include <stddef.h>

enum {
    GL_RECORD = 16384,              /* bytes of a record at most */
    GL_RECORD_HEADER = 5,
    GL_RECORD_MOST = GL_RECORD + 2048,      /* bytes of a record at most, encrypted (RFC 5246, 6.2.3) */
};

typedef struct {
    ptrdiff_t tail;                 /* bytes of an unfinished record that have come; 0 if they are no records */
    ptrdiff_t left;                 /* bytes of it that have not, once its header is there */
    int got;                        /* bytes of its header that have come */
    int unframed;                   /* what comes are not TLS records */
    unsigned char header[GL_RECORD_HEADER];
} gl_records;

/* The header of one is there. */
static inline void gl_records_begin(gl_records *r, const unsigned char *header) {
    r->left = header[3] << 8 | header[4];
    if (!r->left) r->tail = 0;
    else if (header[0] < 20 || header[0] > 24 || header[1] != 3 || r->left > GL_RECORD_MOST) {
        r->unframed = 1;
        r->left = r->tail = 0;
    }
}

/* n bytes at p have come. */
static inline void gl_records_follow(gl_records *r, const unsigned char *p, ptrdiff_t n) {
    const unsigned char *header;
    while (n && !r->unframed) {
        if (r->left > n) {
            r->left -= n;
            r->tail += n;
            return;
        }
        if (r->left) {
            p += r->left;
            n -= r->left;
            r->left = r->tail = 0;
            continue;
        }
        if (r->got == 0 && n >= GL_RECORD_HEADER) {
            header = p;
            p += GL_RECORD_HEADER;
            n -= GL_RECORD_HEADER;
            r->tail += GL_RECORD_HEADER;
        } else {
            header = r->header;
            r->header[r->got++] = *p++;
            r->tail++;
            n--;
            if (r->got < GL_RECORD_HEADER) continue;
            r->got = 0;
        }
        gl_records_begin(r, header);
    }
}

/* How many of the n > 0 bytes that come next, at p, belong to the record that they begin in, as far as that is known. */
static inline ptrdiff_t gl_records_rest(const gl_records *r, const unsigned char *p, ptrdiff_t n) {
    ptrdiff_t rest = r->left;
    if (!rest && n >= GL_RECORD_HEADER && !r->got && !r->unframed) rest = GL_RECORD_HEADER + (p[3] << 8 | p[4]);
    return rest && rest < n ? rest : n;
}

#endif
