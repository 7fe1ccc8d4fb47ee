/* Requests, and the checking of every reply.
 *
 * Each message is a window of opt.size bytes into one block of random bytes; where the window starts changes with the
 * connection and the request, so a lost, doubled, stale or misrouted byte is found by comparing all bytes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loadgen.h"

enum { SLACK = 4096, WS_HEAD_MAX = 14 };

size_t out_size;
char *scratch;
static char *pattern;
static const char http_request[] = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
static const char mask[4] = {0x5a, 0x17, (char)0xc3, 0x2e};
static unsigned char ws_head[WS_HEAD_MAX];     /* of a reply: one unmasked binary frame */
static size_t ws_head_size;

static void make_ws_head(void) {
    ws_head[0] = 0x82;
    ws_head_size = opt.size < 126 ? 2 : opt.size < 1 << 16 ? 4 : 10;
    ws_head[1] = ws_head_size == 2 ? opt.size : ws_head_size == 4 ? 126 : 127;
    for (size_t i = 2; i < ws_head_size; i++) ws_head[i] = opt.size >> 8 * (ws_head_size - 1 - i);
    out_size = ws_head_size + sizeof mask + opt.size;
}

void check_init(void) {
    pattern = malloc(opt.size + SLACK);
    scratch = malloc(RECV_SIZE);
    if (!pattern || !scratch) die(BAD_USE, "out of memory");
    uint64_t x = 88172645463325252ull;
    for (size_t i = 0; i < opt.size + SLACK; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        pattern[i] = (char)x;
    }
    out_size = opt.mode == HTTP ? sizeof http_request - 1 : opt.size;
    if (opt.mode == WS) make_ws_head();
}

/* Key and answer are the example of RFC 6455. Blocking: the loop has not begun. */
void ws_upgrade(struct conn *c) {
    static const char request[] =
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    char reply[2048];
    size_t got = 0;
    fcntl(c->fd, F_SETFL, 0);
    if (write(c->fd, request, sizeof request - 1) < 0) die(CLOSED, "upgrade: %s", strerror(errno));
    do {
        ssize_t n = read(c->fd, reply + got, sizeof reply - 1 - got);
        if (n <= 0) die(CLOSED, "closed by the server instead of upgraded");
        reply[got += n] = 0;
    } while (!strstr(reply, "\r\n\r\n"));
    if (strncmp(reply, "HTTP/1.1 101 ", 13) || !strstr(reply, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="))
        die(WRONG_BYTES, "not upgraded to WebSocket: %.60s", reply);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
}

static void make_frame(struct conn *c) {
    if (!c->frame && !(c->frame = malloc(out_size))) die(BAD_USE, "out of memory");
    memcpy(c->frame, ws_head, ws_head_size);
    c->frame[1] |= (char)0x80;
    char *at = memcpy(c->frame + ws_head_size, mask, sizeof mask);
    for (size_t i = 0; i < opt.size; i++) at[sizeof mask + i] = c->window[i] ^ mask[i % sizeof mask];
    c->out = c->frame;
}

void make_request(struct conn *c) {
    c->window = pattern + ((c->id * 61 + c->seq * 17) % SLACK);
    c->seq++;
    c->sent = c->got = 0;
    if (opt.mode == WS) make_frame(c);
    else c->out = opt.mode == HTTP ? http_request : c->window;
}

char *room_for(struct conn *c, size_t *room) {
    if (opt.mode != HTTP) {
        *room = RECV_SIZE;
        return scratch;
    }
    if (!c->reply) c->reply = malloc(HTTP_MAX);
    *room = HTTP_MAX - 1 - c->got;
    if (!*room) die(WRONG_BYTES, "connection %d: reply is too long", c->id);
    return c->reply + c->got;
}

/* `head` and then the window are what must come back. `got` counts the `n` new bytes already. */
static int check_echo(struct conn *c, const char *data, size_t n, const void *head, size_t head_size) {
    size_t from = c->got - n;
    if (c->got > head_size + opt.size || (!head_size && c->got > c->sent))
        die(WRONG_BYTES, "connection %d: more bytes came back than were sent", c->id);
    size_t in_head = from < head_size ? (n < head_size - from ? n : head_size - from) : 0;
    if (memcmp(data, (const char *)head + from, in_head)
        || memcmp(data + in_head, c->window + (from + in_head - head_size), n - in_head))
        die(WRONG_BYTES, "connection %d, request %llu: the bytes that came back differ", c->id,
            (unsigned long long)c->seq);
    return c->got == head_size + opt.size;
}

static int check_http(struct conn *c) {
    c->reply[c->got] = 0;
    char *head_end = strstr(c->reply, "\r\n\r\n");
    if (!head_end) return 0;
    if (strncmp(c->reply, "HTTP/1.1 200 ", 13))
        die(WRONG_BYTES, "connection %d: not a 200 reply: %.40s", c->id, c->reply);
    char *length = strcasestr(c->reply, "\r\ncontent-length:");
    if (!length || length > head_end) die(WRONG_BYTES, "connection %d: no Content-Length", c->id);
    size_t want = strtoul(length + 17, NULL, 10), have = c->got - (head_end + 4 - c->reply);
    if (want != strlen(opt.body) || have > want || memcmp(head_end + 4, opt.body, have))
        die(WRONG_BYTES, "connection %d: the body differs: %.60s", c->id, head_end + 4);
    return have == want;
}

int check_reply(struct conn *c, const char *data, size_t n) {
    c->got += n;
    if (opt.mode == HTTP) return check_http(c);
    if (opt.mode == WS) return check_echo(c, data, n, ws_head, ws_head_size);
    if (opt.net == UDP && (n != opt.size || memcmp(data, c->window, n)) && c->resent) {
        c->got = 0;                 /* the late reply to a datagram that was taken for lost */
        return 0;
    }
    return check_echo(c, data, n, "", 0);
}
