/* records.h: wherever a stream of records is cut, what has come of the unfinished one is known. */
#include "check.h"
#include "records.h"

enum { N = 4 };

/* Records with bodies of so many bytes, one behind the other; returns the stream's length, and where each one ends. */
static int make(unsigned char *out, const int *bodies, int *ends) {
    int n = 0;
    for (int i = 0; i < N; i++) {
        unsigned char header[] = { 23, 3, 3, (unsigned char)(bodies[i] >> 8), (unsigned char)bodies[i] };
        memcpy(out + n, header, sizeof header);
        memset(out + n + sizeof header, 0xff, (size_t)bodies[i]);
        ends[i] = n += (int)sizeof header + bodies[i];
    }
    return n;
}

static ptrdiff_t behind(const int *ends, int at) {
    int last = 0;
    for (int i = 0; i < N && ends[i] <= at; i++) last = ends[i];
    return at - last;
}

/* Cut at `a` and `b`, for all a <= b; bodies of 0 to 3 bytes, 300 (both bytes of the length), and the most there may be. */
static void test_cut(void) {
    static const int sizes[] = { 0, 1, 3, 300, GL_RECORD_MOST };
    static unsigned char bytes[N * (GL_RECORD_HEADER + GL_RECORD_MOST)];
    for (int i = 0; i < 5 * 5 * 5; i++) {
        int ends[N], bodies[N] = { sizes[i % 5], sizes[i / 5 % 5], sizes[i / 25], 2 };
        int n = make(bytes, bodies, ends), step = n > 100 ? n / 50 : 1;
        for (int a = 0; a <= n; a += step)
            for (int b = a; b <= n; b += step) {
                gl_records r = { 0 };
                gl_records_follow(&r, bytes, a);
                CHECK(r.tail == behind(ends, a));
                gl_records_follow(&r, bytes + a, b - a);
                CHECK(r.tail == behind(ends, b));
                gl_records_follow(&r, bytes + b, n - b);
                CHECK(r.tail == 0 && !r.unframed);
            }
    }
}

/* Steps of gl_records_rest() bytes end where records do, but for one that begins within a cut header. */
static void test_rest(void) {
    static unsigned char bytes[N * (GL_RECORD_HEADER + 300)];
    int ends[N], bodies[N] = { 300, 1, 0, 2 }, n = make(bytes, bodies, ends);
    for (int cut = 0; cut <= n; cut++) {
        gl_records r = { 0 };
        int at = 0;
        for (int end = cut; at < n; end = n)
            while (at < end) {
                int whole = r.left || (!r.got && end - at >= GL_RECORD_HEADER);
                ptrdiff_t take = gl_records_rest(&r, bytes + at, end - at);
                CHECK(take > 0 && take <= end - at);
                gl_records_follow(&r, bytes + at, take);
                at += (int)take;
                if (whole) CHECK(r.tail == 0 || at == end);
            }
        CHECK(r.tail == 0);
    }
}

/* What is no TLS is never followed again, and nothing is claimed of it. */
static void test_unframed(void) {
    const unsigned char *text[] = { (const unsigned char *)"GET / HTTP/1.1", (const unsigned char *)"\x17\x02\x01\x00\x05 abcdefgh",
                                    (const unsigned char *)"\x17\x03\x01\xff\xff abcdefgh" };
    for (int i = 0; i < 3; i++)
        for (int cut = 0; cut <= 13; cut++) {
            gl_records r = { 0 };
            gl_records_follow(&r, text[i], cut);
            gl_records_follow(&r, text[i] + cut, 13 - cut);
            CHECK(r.unframed && r.tail == 0);
            CHECK(gl_records_rest(&r, text[i], 13) == 13);
        }
}

int main(int argc, char **argv) {
    const check_test tests[] = { { "cut", test_cut }, { "rest", test_rest }, { "unframed", test_unframed }, { 0 } };
    return check_main(argc, argv, tests);
}
