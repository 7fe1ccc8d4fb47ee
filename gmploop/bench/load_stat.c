/* Latencies, and the CPU time of the server. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "loadgen.h"

/* Latency histogram: 64 steps for each power of two, so a value is off by 0.8 % at most. */
static uint64_t histogram[64 * 60], recorded;

void stat_reset(void) {
    memset(histogram, 0, sizeof histogram);
    recorded = 0;
}

void stat_record(uint64_t ns) {
    unsigned index = ns;
    if (ns >= 64) {
        int top = 63 - __builtin_clzll(ns);
        index = (top - 5) * 64 + (unsigned)((ns >> (top - 6)) & 63);
    }
    histogram[index]++;
    recorded++;
}

double stat_percentile_us(double share) {
    uint64_t left = share * recorded;
    for (unsigned i = 0; i < sizeof histogram / sizeof *histogram; i++) {
        if (histogram[i] > left) {
            if (i < 64) return i / 1e3;
            return (64.5 + i % 64) * (double)(1ull << (i / 64 - 1)) / 1e3;
        }
        left -= histogram[i];
    }
    return 0;
}

/* The total comes from the process's CPU clock (exact, all threads, those that ended too); how it splits into user
 * and system comes from /proc in clock ticks. */
struct cpu server_cpu(int pid) {
    struct cpu cpu = {0};
    if (!pid) return cpu;
    clockid_t clock;
    if (clock_getcpuclockid(pid, &clock)) die(CLOSED, "the server process is gone");
    cpu.total_ns = clock_ns(clock);
    char text[1024];
    snprintf(text, sizeof text, "/proc/%d/stat", pid);
    FILE *file = fopen(text, "r");
    if (!file) die(CLOSED, "the server process is gone");
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    const char *after_name = strrchr(text, ')');   /* the name may hold spaces and parentheses */
    if (!after_name || sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu",
                              &cpu.user_ticks, &cpu.sys_ticks) != 2)
        die(BAD_USE, "cannot read /proc/%d/stat", pid);
    return cpu;
}
