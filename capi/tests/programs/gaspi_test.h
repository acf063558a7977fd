/* What the GASPI test programs share. */
#ifndef GASPI_TEST_H
#define GASPI_TEST_H

#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L
#include <GASPI.h>

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ALL GASPI_GROUP_ALL
#define BLOCK GASPI_BLOCK

static gaspi_rank_t me, n, next, before;

static inline void failed(int line, const char *what, gaspi_return_t code) {
    fprintf(stderr, "rank %u, line %d: %s: %d %s\n", (unsigned)me, line, what, (int)code, gaspi_error_str(code));
    exit(1);
}

#define CHECK(condition)                                                                                         \
    do {                                                                                                         \
        if (!(condition))                                                                                        \
            failed(__LINE__, #condition, GASPI_SUCCESS);                                                         \
    } while (0)

/* A call that succeeds. */
#define OK(call)                                                                                                 \
    do {                                                                                                         \
        gaspi_return_t code_ = (call);                                                                           \
        if (code_ != GASPI_SUCCESS)                                                                              \
            failed(__LINE__, #call, code_);                                                                      \
    } while (0)

/* A call that returns this code. */
#define GIVES(code, call)                                                                                        \
    do {                                                                                                         \
        gaspi_return_t code_ = (call);                                                                           \
        if (code_ != (code))                                                                                     \
            failed(__LINE__, #call " should be " #code, code_);                                                  \
    } while (0)

static inline void start(void) {
    OK(gaspi_proc_init(BLOCK));
    OK(gaspi_proc_rank(&me));
    OK(gaspi_proc_num(&n));
    next = (gaspi_rank_t)((me + 1) % n);
    before = (gaspi_rank_t)((me + n - 1) % n);
}

/* Ends the working phase, and prints the line of the program. */
static inline void finish(const char *name) {
    OK(gaspi_barrier(ALL, BLOCK));
    if (me == 0)
        printf("%s: %u ranks\n", name, (unsigned)n), fflush(stdout);
    OK(gaspi_proc_term(BLOCK));
}

static inline void *make(gaspi_segment_id_t segment, gaspi_size_t size) {
    gaspi_pointer_t made = NULL;
    OK(gaspi_segment_create(segment, size, ALL, BLOCK, GASPI_MEM_INITIALIZED));
    OK(gaspi_segment_ptr(segment, &made));
    CHECK(made != NULL);
    return made;
}

/* Waits for this notification, and gives its value. */
static inline gaspi_notification_t await(gaspi_segment_id_t segment, gaspi_notification_id_t id) {
    gaspi_notification_id_t first = 0;
    gaspi_notification_t value = 0;
    OK(gaspi_notify_waitsome(segment, id, 1, &first, BLOCK));
    CHECK(first == id);
    OK(gaspi_notify_reset(segment, id, &value));
    CHECK(value != 0);
    return value;
}

#endif
