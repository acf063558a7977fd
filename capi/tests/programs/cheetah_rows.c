/* Cheetah's rows in C. Every check names its row. Usage: cheetah_rows DIRECTORY [full]; any number of contexts. With `full`, sizes and
 * numbers are those of the table. */
#define _XOPEN_SOURCE 700
#include <cheetah.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MOST 8

static int me = -1, n = -1;
/* Bytes of the largest transfer; operations of c06, rounds of c08, calls of c14 and c24. */
static int largest = 1 << 20, mixed = 1000, rounds = 100, invokes = 20000, hops_wanted = 10000;

#define CHECK(row, condition)                                                                                        \
    do {                                                                                                             \
        if (!(condition)) {                                                                                          \
            fprintf(stderr, "%s failed in context %d, line %d: %s; last error: %s\n", row, me, __LINE__, #condition, \
                    cheetah_error_string());                                                                         \
            exit(1);                                                                                                 \
        }                                                                                                            \
    } while (0)
#define OK(row, call) CHECK(row, (call) == CHEETAH_SUCCESS)

/* What contexts tell each other: where their memory is. */
struct places {
    char *heap;
    char *fixed;
    char *stack;
    int *bells;
};

static struct places all[MOST];
static int told;
static char fixed[4096];
static int bells[4];
static char *heap, *stack;

static void tell(int who, int id, void *buffer, int length) {
    (void)id;
    CHECK("c13", length == (int)sizeof all[0]);
    memcpy(&all[who], buffer, sizeof all[0]);
    told++;
}

static int calls, last_id, last_length, last_who;
static char last[8192];

static void note(int who, int id, void *buffer, int length) {
    CHECK("c13", (size_t)buffer % sizeof(double) == 0);
    CHECK("c13", length <= (int)sizeof last);
    memcpy(last, buffer, (size_t)length);
    /* c14: the buffer is the handler's to write. */
    memset(buffer, 0xAA, (size_t)length);
    last_who = who;
    last_id = id;
    last_length = length;
    calls++;
}

static void other(int who, int id, void *buffer, int length) {
    (void)who, (void)buffer, (void)length;
    last_id = id;
    calls++;
}

static int hop_id, hops, nesting;

/* Sends back what it gets, one less, until it is nothing. */
static void hop(int who, int id, void *buffer, int length) {
    int left;
    CHECK("c24", nesting++ == 0);
    CHECK("c24", length == (int)sizeof left);
    memcpy(&left, buffer, sizeof left);
    hops++;
    if (left > 0) {
        left--;
        OK("c24", cheetah_core_ainvoke(who, id, &left, sizeof left, NULL));
    }
    CHECK("c24", cheetah_core_poll() >= 0);
    CHECK("c24", cheetah_core_barrier() == CHEETAH_ERR_HANDLER);
    CHECK("c24", cheetah_core_finalize() == CHEETAH_ERR_HANDLER);
    CHECK("c24", cheetah_core_ncontexts() == n);
    nesting--;
}

static int count_calls;

static void count(int who, int id, void *buffer, int length) {
    (void)id, (void)buffer, (void)length;
    if (++count_calls % 100 == 0)
        OK("c14", cheetah_core_put(who, NULL, NULL, 0, NULL, &all[who].bells[3]));
}

static void sleep_for(long milliseconds) {
    struct timespec time;
    time.tv_sec = milliseconds / 1000;
    time.tv_nsec = milliseconds % 1000 * 1000000;
    nanosleep(&time, NULL);
}

static void c04(void) {
    CHECK("c04", n >= 1 && n <= MOST);
    CHECK("c04", me >= 0 && me < n);
    CHECK("c04", cheetah_core_ncontexts() == n && cheetah_core_mycontext() == me);
}

static void c16_and_places(void) {
    struct places mine;
    int first, to;
    first = cheetah_core_register_function(tell);
    CHECK("c16", first >= 0);
    CHECK("c16", cheetah_core_register_function(note) == first + 1);
    CHECK("c16", cheetah_core_register_function(other) == first + 2);
    hop_id = cheetah_core_register_function(hop);
    CHECK("c16", hop_id == first + 3);
    mine.heap = heap;
    mine.fixed = fixed;
    mine.stack = stack;
    mine.bells = bells;
    for (to = 0; to < n; to++)
        OK("c13", cheetah_core_ainvoke(to, first, &mine, sizeof mine, NULL));
    while (told < n)
        CHECK("c19", cheetah_core_poll() >= 0);
    OK("c18", cheetah_core_barrier());

    /* The numbers name the same functions everywhere. */
    for (to = 0; to < n; to++)
        OK("c16", cheetah_core_ainvoke(to, first + 2, NULL, 0, NULL));
    while (calls < n)
        CHECK("c16", cheetah_core_poll() >= 0);
    CHECK("c16", last_id == first + 2);
    calls = 0;
    OK("c16", cheetah_core_barrier());
}

/* Function `note` is the second one. */
static void c13_c15(void) {
    static const int sizes[] = {0, 1, 7, 8, 40, 48, 49, 255, 256, 257, 4097, 8192};
    char buffer[8192];
    int at, i, bell = 0, next = (me + 1) % n, before = (me + n - 1) % n;
    for (at = 0; at < (int)(sizeof sizes / sizeof *sizes); at++) {
        int length = sizes[at];
        for (i = 0; i < length; i++)
            buffer[i] = (char)(i * 7 + me + at);
        OK("c13", cheetah_core_ainvoke(next, 1, buffer, length, &bell));
        CHECK("c15", bell == at + 1);
        memset(buffer, 0xFF, sizeof buffer);
        while (calls < 1)
            CHECK("c13", cheetah_core_poll() >= 0);
        CHECK("c13", calls == 1 && last_who == before && last_id == 1 && last_length == length);
        for (i = 0; i < length; i++)
            CHECK("c15", last[i] == (char)(i * 7 + before + at));
        calls = 0;
        OK("c13", cheetah_core_barrier());
    }
}

static void c05_c06(void) {
    int i, local = 0, next = (me + 1) % n;
    char byte = (char)me;
    for (i = 0; i < 1000; i++)
        OK("c05", cheetah_core_put(next, all[next].fixed, &byte, 1, &local, &all[next].bells[0]));
    OK("c05", cheetah_core_wait(&local, 1000));
    OK("c05", cheetah_core_wait(&bells[0], 1000));
    OK("c05", cheetah_core_barrier());
    CHECK("c05", local == 1000 && bells[0] == 1000);
    /* From all contexts at once, puts and gets mixed. */
    for (i = 0; i < mixed / 2; i++) {
        OK("c06", cheetah_core_put(0, all[0].fixed + me, &byte, 1, &local, &all[0].bells[1]));
        OK("c06", cheetah_core_get(0, all[0].fixed + me, &byte, 1, &local, &all[0].bells[1]));
    }
    OK("c06", cheetah_core_wait(&local, 1000 + mixed));
    if (me == 0)
        OK("c06", cheetah_core_wait(&bells[1], mixed * n));
    OK("c06", cheetah_core_barrier());
    CHECK("c06", local == 1000 + mixed && (me != 0 || bells[1] == mixed * n));
    bells[0] = bells[1] = 0;
    OK("c06", cheetah_core_barrier());
}

static void c07_c08_c09_c27(void) {
    const int sizes[] = {1, 7, 8, 9, 48, 4095, 4096, 4097, largest};
    char *from = malloc((size_t)largest);
    int at, i, target, next = (me + 1) % n, before = (me + n - 1) % n, rings = 0;
    CHECK("c07", from != NULL);
    for (at = 0; at < (int)(sizeof sizes / sizeof *sizes); at++) {
        /* Heap, static memory and stack, by their own addresses there. */
        for (target = 0; target < 3; target++) {
            int length = sizes[at], local = 0;
            char *there = target == 0 ? all[next].heap : target == 1 ? all[next].fixed : all[next].stack;
            char *here = target == 0 ? heap : target == 1 ? fixed : stack;
            if (target && length > (int)sizeof fixed)
                continue;
            for (i = 0; i < length; i++)
                from[i] = (char)(i + i / 251 + me + at);
            OK("c07", cheetah_core_put(next, there, from, length, &local, &all[next].bells[0]));
            OK("c07", cheetah_core_wait(&local, 1));
            memset(from, 0xFF, (size_t)largest);
            /* No call here matches the put: the context only polls. */
            OK("c09", cheetah_core_wait(&bells[0], ++rings));
            CHECK("c08", bells[0] == rings);
            for (i = 0; i < length; i++)
                CHECK("c08", here[i] == (char)(i + i / 251 + before + at));
            OK("c27", cheetah_core_barrier());
        }
    }
    /* Round after round: the last byte is there when the bell rings. */
    for (at = 1; at <= rounds; at++) {
        from[7] = (char)at;
        OK("c08", cheetah_core_put(next, all[next].fixed, from, 8, NULL, &all[next].bells[0]));
        OK("c08", cheetah_core_wait(&bells[0], rings + at));
        CHECK("c08", *(volatile char *)&fixed[7] == (char)at);
        /* The neighbour may write the next one now. */
        OK("c08", cheetah_core_put(before, NULL, NULL, 0, NULL, &all[before].bells[1]));
        OK("c08", cheetah_core_wait(&bells[1], at));
    }
    free(from);
    OK("c08", cheetah_core_barrier());
    bells[0] = bells[1] = 0;
    OK("c07", cheetah_core_barrier());
}

static void c10(void) {
    char *to = malloc((size_t)largest);
    int i, local = 0, next = (me + 1) % n;
    CHECK("c10", to != NULL);
    for (i = 0; i < largest; i++)
        heap[i] = (char)(i * 3 + me);
    OK("c10", cheetah_core_barrier());
    OK("c10", cheetah_core_get(next, all[next].heap, to, largest, &local, &all[next].bells[0]));
    /* As soon as the context's own remote bell rings, its memory may be changed. */
    OK("c10", cheetah_core_wait(&bells[0], 1));
    memset(heap, 0, (size_t)largest);
    OK("c10", cheetah_core_wait(&local, 1));
    for (i = 0; i < largest; i++)
        CHECK("c10", to[i] == (char)(i * 3 + next));
    free(to);
    OK("c10", cheetah_core_barrier());
    CHECK("c10", local == 1 && bells[0] == 1);
    bells[0] = 0;
    OK("c10", cheetah_core_barrier());
}

static void c11_c12_c26(void) {
    int with, local = 0, to;
    char byte = 5, got = 0;
    for (to = 0; to < n; to++) {
        for (with = 0; with < 4; with++) {
            int *l = with & 1 ? &local : NULL, *r = with & 2 ? &all[to].bells[0] : NULL;
            OK("c11", cheetah_core_put(to, all[to].fixed + me, &byte, 1, l, r));
            OK("c11", cheetah_core_get(to, all[to].fixed + me, &got, 1, l, r));
            OK("c12", cheetah_core_put(to, NULL, NULL, 0, l, r));
            OK("c12", cheetah_core_get(to, NULL, NULL, 0, l, r));
        }
        OK("c11", cheetah_core_ainvoke(to, 2, NULL, 0, NULL));
    }
    OK("c11", cheetah_core_wait(&local, 8 * n));
    OK("c11", cheetah_core_wait(&bells[0], 8 * n));
    while (calls < n)
        CHECK("c11", cheetah_core_poll() >= 0);
    OK("c11", cheetah_core_barrier());
    CHECK("c12", local == 8 * n && bells[0] == 8 * n);
    CHECK("c26", fixed[me] == 5);
    bells[0] = calls = 0;
    OK("c11", cheetah_core_barrier());
}

static void c14(void) {
    int i, id = cheetah_core_register_function(count);
    char buffer[300];
    struct rusage first, second;
    memset(buffer, 1, sizeof buffer);
    OK("c14", cheetah_core_barrier());
    CHECK("c14", getrusage(RUSAGE_SELF, &first) == 0);
    for (i = 1; i <= invokes; i++) {
        OK("c14", cheetah_core_ainvoke((me + 1) % n, id, buffer, i % 2 ? 40 : 300, NULL));
        if (i % 100 == 0)
            OK("c14", cheetah_core_wait(&bells[3], i / 100));
    }
    OK("c14", cheetah_core_barrier());
    CHECK("c14", getrusage(RUSAGE_SELF, &second) == 0);
    CHECK("c14", count_calls == invokes);
    CHECK("c14", second.ru_maxrss - first.ru_maxrss < 16 << 10);
}

static void c18(void) {
    int round, to, local = 0;
    for (round = 1; round <= rounds; round++) {
        char mark = (char)round, seen[MOST];
        if (me == n - 1 && round == 1)
            sleep_for(200);
        /* Nobody leaves before all have entered: what each did before is there for all after it. */
        *(volatile char *)&fixed[100] = mark;
        OK("c18", cheetah_core_barrier());
        for (to = 0; to < n; to++)
            OK("c18", cheetah_core_get(to, all[to].fixed + 100, &seen[to], 1, &local, NULL));
        OK("c18", cheetah_core_wait(&local, round * n));
        for (to = 0; to < n; to++)
            CHECK("c18", seen[to] == mark);
        OK("c18", cheetah_core_barrier());
    }
}

static void c19_c20_c21(void) {
    int last_one = n - 1, i;
    if (n > 1 && me == 0)
        OK("c19", cheetah_core_ainvoke(last_one, 2, NULL, 0, NULL));
    if (n > 1 && me == last_one) {
        /* The last barrier may have run it on its way out. */
        int before = calls;
        for (i = 0; i < 20; i++) {
            sleep_for(5);
            CHECK("c19", calls == before);
        }
        while (calls < 1)
            CHECK("c19", cheetah_core_poll() >= 0);
    }
    OK("c19", cheetah_core_barrier());
    calls = 0;
    OK("c19", cheetah_core_barrier());
    /* All others sit in the barrier, and answer from there. */
    if (me == 0) {
        int left = 9;
        for (i = 0; i < n; i++)
            OK("c20", cheetah_core_ainvoke(i, hop_id, &left, sizeof left, NULL));
        while (hops < (n - 1) * 5 + 10)
            CHECK("c20", cheetah_core_poll() >= 0);
    }
    OK("c20", cheetah_core_barrier());
    CHECK("c20", hops == (me == 0 ? (n - 1) * 5 + 10 : 5));
    hops = 0;
    bells[2] = 3;
    OK("c21", cheetah_core_wait(&bells[2], 3));
    OK("c21", cheetah_core_wait(&bells[2], -1));
    CHECK("c21", bells[2] == 3);
    OK("c21", cheetah_core_barrier());
}

static void c22(void) {
    char line[256];
    int threads = 0;
    FILE *status;
    /* MPI libraries start threads of their own, and so does a network, for connections. */
    if (getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("BELLWETHER_TRANSPORT") != NULL ||
        (status = fopen("/proc/self/status", "r")) == NULL)
        return;
    while (fgets(line, sizeof line, status) != NULL)
        if (strncmp(line, "Threads:", 8) == 0)
            threads = atoi(line + 8);
    fclose(status);
    CHECK("c22", threads == 1);
}

/* The last context does not poll until context 0 has left a file, which it does when its calls have returned. */
static void c23(const char *directory) {
    char path[4096], *from = calloc(1, (size_t)largest);
    int last_one = n - 1;
    CHECK("c23", from != NULL);
    snprintf(path, sizeof path, "%s/c23", directory);
    if (me == 0) {
        OK("c23", cheetah_core_put(last_one, all[last_one].heap, from, largest, NULL, &all[last_one].bells[0]));
        OK("c23", cheetah_core_ainvoke(last_one, 2, from, 8192, NULL));
        CHECK("c23", fclose(fopen(path, "w")) == 0);
    }
    if (me == last_one) {
        while (access(path, F_OK) != 0)
            sleep_for(1);
        OK("c23", cheetah_core_wait(&bells[0], 1));
        while (calls < 1)
            CHECK("c23", cheetah_core_poll() >= 0);
    }
    free(from);
    OK("c23", cheetah_core_barrier());
    bells[0] = calls = 0;
    OK("c23", cheetah_core_barrier());
}

static void c24(void) {
    int left = hops_wanted - 1, wanted = n == 1 ? hops_wanted : hops_wanted / 2;
    if (me == 0)
        OK("c24", cheetah_core_ainvoke(n - 1, hop_id, &left, sizeof left, NULL));
    while ((me == 0 || me == n - 1) && hops < wanted)
        CHECK("c24", cheetah_core_poll() >= 0);
    OK("c24", cheetah_core_barrier());
}

static void at_exit(void) {
    /* c02: no crash, and a code. */
    if (cheetah_core_poll() != CHEETAH_ERR_STATE)
        _exit(1);
}

int main(int argc, char **argv) {
    char on_stack[4096];
    CHECK("c03", cheetah_core_ncontexts() == CHEETAH_ERR_STATE);
    CHECK("c03", strstr(cheetah_error_string(), "cheetah_core_setup") != NULL);
    OK("c01", cheetah_core_setup(&argc, &argv));
    CHECK("c01", argc >= 2 && argc <= 3 && argv[argc] == NULL);
    if (argc == 3) {
        CHECK("c01", strcmp(argv[2], "full") == 0);
        largest = 64 << 20, mixed = 500000, rounds = 10000, invokes = 1000000, hops_wanted = 100000;
    }
    me = cheetah_core_mycontext();
    n = cheetah_core_ncontexts();
    heap = malloc((size_t)largest);
    stack = on_stack;
    CHECK("c27", heap != NULL);
    c04();
    c16_and_places();
    c13_c15();
    c05_c06();
    c07_c08_c09_c27();
    c10();
    c11_c12_c26();
    c14();
    c18();
    c19_c20_c21();
    c22();
    c23(argv[1]);
    c24();
    if (me == 0)
        printf("all rows: %d contexts\n", n);
    fflush(stdout);
    if (me == n - 1)
        sleep_for(100);
    /* c01: what was sent before is delivered. */
    calls = 0;
    OK("c01", cheetah_core_barrier());
    OK("c01", cheetah_core_ainvoke((me + 1) % n, 2, NULL, 0, NULL));
    OK("c01", cheetah_core_finalize());
    CHECK("c01", calls == 1);
    CHECK("c02", cheetah_core_mycontext() == CHEETAH_ERR_STATE);
    CHECK("c02", cheetah_core_finalize() == CHEETAH_ERR_STATE);
    CHECK("c02", cheetah_core_setup(&argc, &argv) == CHEETAH_ERR_STATE);
    CHECK("c02", atexit(at_exit) == 0);
    free(heap);
    return 0;
}
