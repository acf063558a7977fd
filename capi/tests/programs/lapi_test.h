/* What the LAPI test programs share. */
#ifndef LAPI_TEST_H
#define LAPI_TEST_H

#define _DEFAULT_SOURCE
#define _POSIX_C_SOURCE 200809L
#include <lapi.h>

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST 64

static lapi_handle_t hndl;
static int me = -1, n = -1, next, before;

static inline void failed(int line, const char *what, int code) {
    char text[LAPI_MAX_ERR_STRING] = "";
    if (code != LAPI_SUCCESS)
        LAPI_Msg_string(code, text);
    fprintf(stderr, "task %d, line %d: %s: %d %s\n", me, line, what, code, text);
    exit(1);
}

#define CHECK(condition)                                                                                         \
    do {                                                                                                         \
        if (!(condition))                                                                                        \
            failed(__LINE__, #condition, 0);                                                                     \
    } while (0)

/* A call that succeeds. */
#define OK(call)                                                                                                 \
    do {                                                                                                         \
        int code_ = (call);                                                                                      \
        if (code_ != LAPI_SUCCESS)                                                                               \
            failed(__LINE__, #call, code_);                                                                      \
    } while (0)

/* A call that returns this code. */
#define GIVES(code, call)                                                                                        \
    do {                                                                                                         \
        int code_ = (call);                                                                                      \
        if (code_ != (code))                                                                                     \
            failed(__LINE__, #call " should be " #code, code_);                                                  \
    } while (0)

static inline int query(lapi_query_t what) {
    int value = -1;
    OK(LAPI_Qenv(hndl, what, &value));
    return value;
}

static inline void start(void) {
    lapi_info_t info;
    memset(&info, 0, sizeof info);
    OK(LAPI_Init(&hndl, &info));
    me = query(TASK_ID);
    n = query(NUM_TASKS);
    CHECK(n <= MOST);
    next = (me + 1) % n;
    before = (me + n - 1) % n;
}

static inline void set(lapi_cntr_t *counter, int value) { OK(LAPI_Setcntr(hndl, counter, value)); }

static inline int value_of(lapi_cntr_t *counter) {
    int value = -1;
    OK(LAPI_Getcntr(hndl, counter, &value));
    return value;
}

/* Waits for `value`, and gives what is left. */
static inline int wait_for(lapi_cntr_t *counter, int value) {
    int left = -1;
    OK(LAPI_Waitcntr(hndl, counter, value, &left));
    return left;
}

static inline void fence_all(void) { OK(LAPI_Gfence(hndl)); }

/* What `task` gives in this collective call. */
static inline void *at(int task, void *mine) {
    void *table[MOST];
    OK(LAPI_Address_init(hndl, mine, table));
    return table[task];
}

static inline void fill(unsigned char *bytes, unsigned long len, int seed) {
    unsigned long i;
    for (i = 0; i < len; i++)
        bytes[i] = (unsigned char)(i * 31 + (unsigned long)seed * 7 + i / 251);
}

static inline int is_filled(const unsigned char *bytes, unsigned long len, int seed) {
    unsigned long i;
    for (i = 0; i < len; i++)
        if (bytes[i] != (unsigned char)(i * 31 + (unsigned long)seed * 7 + i / 251))
            return 0;
    return 1;
}

static inline void *room(unsigned long len) {
    void *made = calloc(len + 1, 1);
    CHECK(made != NULL);
    return made;
}

static inline void pause_ms(int ms) {
    struct timespec time;
    time.tv_sec = ms / 1000;
    time.tv_nsec = (long)(ms % 1000) * 1000000;
    nanosleep(&time, NULL);
}

#endif
