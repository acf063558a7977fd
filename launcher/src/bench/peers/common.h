/* What the peers' programs share: arguments, the clock, the size of batches.
   PROGRAM BENCH BATCHES SHORTEN SIZE...  prints a line a batch: size, nanoseconds an operation. */
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

/* Operations of a batch: `most`, or as many as move `bytes` bytes in all. */
static inline long operations(long most, long bytes, long size, long shorten) {
    long n = bytes / (size > 0 ? size : 1);
    n = (n < most ? n : most) / shorten;
    return n > 0 ? n : 1;
}

static inline void report(long size, double ns) {
    printf("%ld %.4f\n", size, ns);
}

/* Small operations wander over this many bytes, as ours do. */
enum { REACH = 4096 };

