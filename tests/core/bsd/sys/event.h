/* kqueue(2) as the BSDs and macOS declare it: enough to compile against. */
#ifndef BSD_SYS_EVENT_H
#define BSD_SYS_EVENT_H
#include <stdint.h>
#include <time.h>

struct kevent {
    uintptr_t ident;
    int16_t filter;
    uint16_t flags;
    uint32_t fflags;
    intptr_t data;
    void *udata;
};

#define EVFILT_READ (-1)
#define EVFILT_WRITE (-2)
#define EVFILT_USER (-10)
#define EV_ADD 0x0001
#define EV_DELETE 0x0002
#define EV_ENABLE 0x0004
#define EV_DISABLE 0x0008
#define EV_ONESHOT 0x0010
#define EV_CLEAR 0x0020
#define EV_RECEIPT 0x0040
#define EV_DISPATCH 0x0080
#define EV_ERROR 0x4000
#define EV_EOF 0x8000
#define NOTE_TRIGGER 0x01000000
#define EV_SET(e, a, b, c, d, f, g) \
    do { struct kevent *e_ = (e); e_->ident = (uintptr_t)(a); e_->filter = (b); e_->flags = (c); e_->fflags = (d); \
         e_->data = (intptr_t)(f); e_->udata = (g); } while (0)

int kqueue(void);
int kevent(int, const struct kevent *, int, struct kevent *, int, const struct timespec *);
#endif
