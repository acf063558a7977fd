/* Put and get, there and back, with their counters: a latency test as LAPI's users write it. Prints microseconds. */
#include "lapi_test.h"

#define ROUNDS 2000
#define LONGEST 65536

static double seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int argc, char **argv) {
    static unsigned char here[LONGEST], there[LONGEST];
    static const unsigned long lengths[] = {8, 1024, LONGEST};
    lapi_cntr_t arrived, got;
    lapi_cntr_t *arrived_there;
    unsigned char *place;
    int rounds = argc > 1 ? atoi(argv[1]) : ROUNDS, partner, i;
    unsigned length;
    alarm(100);
    start();
    /* Pairs of tasks; the last of an odd number takes part alone. */
    partner = (me ^ 1) < n ? me ^ 1 : me;
    OK(LAPI_Senv(hndl, INTERRUPT_SET, 0));
    set(&arrived, 0), set(&got, 0);
    arrived_there = at(partner, &arrived);
    place = at(partner, there);
    for (length = 0; length < sizeof lengths / sizeof *lengths; length++) {
        unsigned long len = lengths[length];
        double began, put_time, get_time;
        fill(here, len, me + (int)length);
        memset(there, 0, len);
        fence_all();
        began = seconds();
        for (i = 0; i < rounds; i++) {
            /* One puts while the other waits. */
            if (partner == me || (me < partner) == (i % 2 == 0))
                OK(LAPI_Put(hndl, partner, len, place, here, arrived_there, NULL, NULL));
            if (partner == me || (me < partner) != (i % 2 == 0))
                CHECK(wait_for(&arrived, 1) == 0);
        }
        put_time = (seconds() - began) / rounds;
        fence_all();
        CHECK(rounds < 2 || is_filled(there, len, partner + (int)length));
        memset(here, 0, len);
        fill(there, len, me + 100);
        fence_all();
        began = seconds();
        for (i = 0; i < rounds && (me <= partner || i == 0); i++) {
            OK(LAPI_Get(hndl, partner, len, place, here, NULL, &got));
            CHECK(wait_for(&got, 1) == 0);
        }
        get_time = (seconds() - began) / rounds;
        fence_all();
        CHECK(is_filled(here, len, partner + 100));
        if (me == 0)
            printf("%6lu bytes: put %.2f us one way, get %.2f us\n", len, put_time * 1e6, get_time * 1e6);
    }
    OK(LAPI_Term(hndl));
    if (me == 0)
        printf("latency: %d tasks\n", n);
    return 0;
}
