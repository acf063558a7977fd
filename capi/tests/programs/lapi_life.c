/*
 * How tasks begin and end. Usage: lapi_life early | destructor | again | threads | abandoned DIRECTORY
 */
#include "lapi_test.h"

static const char *directory;

static void term_late(void) {
    fence_all();
    OK(LAPI_Term(hndl));
}

/* Tasks exit at different times after LAPI_Term, and all end well. */
static void early(void) {
    start();
    OK(LAPI_Term(hndl));
    pause_ms(150 * me);
}

/* LAPI_Term is called by a function that runs after all others at exit. */
static void destructor(void) {
    CHECK(atexit(term_late) == 0);
    start();
}

/* LAPI_Init is collective: once a task has left, it is an error at the others. */
static void again(void) {
    lapi_info_t info;
    lapi_handle_t handle = 99;
    start();
    OK(LAPI_Term(hndl));
    if (me == 0)
        return;
    pause_ms(100);
    memset(&info, 0, sizeof info);
    GIVES(LAPI_ERR_PEER_LOST, LAPI_Init(&handle, &info));
    CHECK(handle == 99);
}

static void *begin(void *argument) {
    (void)argument;
    start();
    return NULL;
}

static void *finish(void *argument) {
    (void)argument;
    OK(LAPI_Term(hndl));
    return NULL;
}

/* Threads of their own make and end each handle. */
static void threads(void) {
    pthread_t thread;
    int round;
    for (round = 0; round < 3; round++) {
        CHECK(pthread_create(&thread, NULL, begin, NULL) == 0 && pthread_join(thread, NULL) == 0);
        fence_all();
        CHECK(pthread_create(&thread, NULL, finish, NULL) == 0 && pthread_join(thread, NULL) == 0);
    }
}

static void forever(lapi_handle_t *handle, void *user_info) {
    (void)handle, (void)user_info;
    for (;;)
        pause_ms(1000);
}

static int entered;

static void *block(lapi_handle_t *handle, void *uhdr, uint *uhdr_len, ulong *msg_len, compl_hndlr_t **then,
                   void **user_info) {
    (void)handle, (void)uhdr, (void)uhdr_len, (void)msg_len, (void)user_info;
    *then = forever;
    __atomic_store_n(&entered, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Every task exits without LAPI_Term, in the middle of a completion handler, and no exit waits. */
static void abandoned(void) {
    char path[4096];
    int task;
    CHECK(directory != NULL);
    start();
    OK(LAPI_Addr_set(hndl, (void *)block, 1));
    fence_all();
    OK(LAPI_Amsend(hndl, me, (void *)1, NULL, 0, NULL, 0, NULL, NULL, NULL));
    while (!__atomic_load_n(&entered, __ATOMIC_ACQUIRE))
        OK(LAPI_Probe(hndl));
    /* A call of LAPI would fail beside a task that has exited: each leaves a file, and waits for those of all. */
    for (task = 0; task < n; task++) {
        snprintf(path, sizeof path, "%s/%d", directory, (me + task) % n);
        if (task == 0)
            CHECK(fclose(fopen(path, "w")) == 0);
        while (access(path, F_OK) != 0)
            pause_ms(1);
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } ways[] = {{"early", early}, {"destructor", destructor}, {"again", again}, {"threads", threads}, {"abandoned", abandoned}};
    unsigned i;
    alarm(90);
    for (i = 0; i < sizeof ways / sizeof *ways; i++)
        if (argc >= 2 && strcmp(argv[1], ways[i].name) == 0) {
            directory = argc == 3 ? argv[2] : NULL;
            ways[i].run();
            printf("%s: task %d of %d\n", argv[1], me, n);
            return 0;
        }
    return 2;
}
