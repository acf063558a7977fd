/* Every code of cheetah.h that a call can provoke: nothing is sent, and no bell moves. Usage: cheetah_misuse [function] */
#define _POSIX_C_SOURCE 200809L
#include <cheetah.h>

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int me = -1, n = -1;

#define CHECK(condition)                                                                                         \
    do {                                                                                                         \
        if (!(condition)) {                                                                                      \
            fprintf(stderr, "context %d, line %d: %s; last error: %s\n", me, __LINE__, #condition,               \
                    cheetah_error_string());                                                                     \
            exit(1);                                                                                             \
        }                                                                                                        \
    } while (0)

static int calls;

static void note(int who, int id, void *buffer, int length) {
    (void)who, (void)id, (void)buffer, (void)length;
    calls++;
}

static char byte = 7;
static int bell, bells[2];

/* The code of every call that sends or waits, made rightly but for when or where. */
static void all_are(int code) {
    CHECK(cheetah_core_ncontexts() == code);
    CHECK(cheetah_core_mycontext() == code);
    CHECK(cheetah_core_put(0, &byte, &byte, 1, &bell, &bell) == code);
    CHECK(cheetah_core_get(0, &byte, &byte, 1, &bell, &bell) == code);
    CHECK(cheetah_core_register_function(note) == code);
    CHECK(cheetah_core_ainvoke(0, 0, &byte, 1, &bell) == code);
    CHECK(cheetah_core_poll() == code);
    CHECK(cheetah_core_wait(&bell, 1) == code);
    CHECK(cheetah_core_barrier() == code);
    CHECK(cheetah_core_finalize() == code);
    CHECK(bell == 0 && byte == 7 && calls == 0);
    CHECK(strlen(cheetah_error_string()) > 0);
}

static void *other_thread(void *argument) {
    (void)argument;
    CHECK(strcmp(cheetah_error_string(), "") == 0);
    all_are(CHEETAH_ERR_THREAD);
    CHECK(cheetah_core_setup(NULL, NULL) == CHEETAH_ERR_STATE);
    return NULL;
}

static void arguments(void) {
    static const int wrong[] = {-1, INT_MIN, INT_MAX};
    int i, *crooked = (int *)(void *)((char *)bells + 1);
    for (i = 0; i < 4; i++) {
        int context = i < 3 ? wrong[i] : n;
        CHECK(cheetah_core_put(context, &byte, &byte, 1, &bell, &bell) == CHEETAH_ERR_CONTEXT);
        CHECK(cheetah_core_get(context, &byte, &byte, 1, &bell, &bell) == CHEETAH_ERR_CONTEXT);
        CHECK(cheetah_core_ainvoke(context, 0, &byte, 1, &bell) == CHEETAH_ERR_CONTEXT);
        CHECK(strstr(cheetah_error_string(), "there is no context") != NULL);
    }
    CHECK(cheetah_core_put(me, &byte, &byte, -1, &bell, &bell) == CHEETAH_ERR_ARGUMENT);
    CHECK(cheetah_core_get(me, &byte, &byte, INT_MIN, &bell, &bell) == CHEETAH_ERR_ARGUMENT);
    CHECK(cheetah_core_ainvoke(me, 0, &byte, -1, &bell) == CHEETAH_ERR_ARGUMENT);
    CHECK(strstr(cheetah_error_string(), "length is -1") != NULL);
    CHECK(cheetah_core_put(me, &byte, NULL, 1, &bell, &bell) == CHEETAH_ERR_ARGUMENT);
    CHECK(cheetah_core_get(me, &byte, NULL, 1, &bell, &bell) == CHEETAH_ERR_ARGUMENT);
    CHECK(cheetah_core_ainvoke(me, 0, NULL, 1, &bell) == CHEETAH_ERR_ARGUMENT);
    CHECK(cheetah_core_ainvoke(me, -1, &byte, 1, &bell) == CHEETAH_ERR_ARGUMENT);
    CHECK(cheetah_core_put(me, &byte, &byte, 1, crooked, &bell) == CHEETAH_ERR_ARGUMENT);
    CHECK(cheetah_core_get(me, &byte, &byte, 1, crooked, &bell) == CHEETAH_ERR_ARGUMENT);
    CHECK(cheetah_core_ainvoke(me, 0, &byte, 1, crooked) == CHEETAH_ERR_ARGUMENT);
    CHECK(cheetah_core_wait(crooked, 1) == CHEETAH_ERR_ARGUMENT);
    CHECK(cheetah_core_wait(NULL, 1) == CHEETAH_ERR_ARGUMENT);
    CHECK(cheetah_core_register_function(NULL) == CHEETAH_ERR_ARGUMENT);
    CHECK(cheetah_core_put(me, &byte, &byte, 1, &bell, crooked) == CHEETAH_ERR_ADDRESS);
    CHECK(cheetah_core_get(me, &byte, &byte, 1, &bell, crooked) == CHEETAH_ERR_ADDRESS);
    CHECK(cheetah_core_put(me, NULL, &byte, 1, &bell, &bell) == CHEETAH_ERR_ADDRESS);
    CHECK(cheetah_core_get(me, NULL, &byte, 1, &bell, &bell) == CHEETAH_ERR_ADDRESS);
    CHECK(cheetah_core_setup(NULL, NULL) == CHEETAH_ERR_STATE);
    CHECK(cheetah_core_barrier() == CHEETAH_SUCCESS);
    CHECK(bell == 0 && byte == 7 && calls == 0 && bells[0] == 0 && bells[1] == 0);
}

/* A child is not a context. */
static void forked(void) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        int ok = cheetah_core_setup(NULL, NULL) == CHEETAH_ERR_THREAD &&
                 cheetah_core_put((me + 1) % n, &byte, &byte, 1, &bell, NULL) == CHEETAH_ERR_THREAD &&
                 cheetah_core_ainvoke(me, 0, &byte, 1, NULL) == CHEETAH_ERR_THREAD &&
                 cheetah_core_barrier() == CHEETAH_ERR_THREAD && bell == 0;
        _exit(ok ? 0 : 1);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* c17: a number that nobody has registered is an error where it arrives. */
static void unregistered(void) {
    int code = 0;
    /* The other context may have called first: then this call tells. */
    code = cheetah_core_ainvoke((me + 1) % n, 99, &byte, 1, NULL);
    if (code == CHEETAH_SUCCESS)
        code = cheetah_core_finalize();
    else
        printf("context %d: %s\n", me, cheetah_error_string()), cheetah_core_finalize();
    CHECK(code == CHEETAH_ERR_FUNCTION);
    CHECK(strstr(cheetah_error_string(), "99") != NULL);
    printf("context %d: %s\n", me, cheetah_error_string());
}

int main(int argc, char **argv) {
    pthread_t thread;
    int two = 2;
    char *options[3];
    char program[] = "program", np[] = "-np", *none = NULL, **list = options;
    CHECK(strcmp(cheetah_error_string(), "") == 0);
    all_are(CHEETAH_ERR_STATE);
    CHECK(cheetah_core_setup(&argc, NULL) == CHEETAH_ERR_ARGUMENT);
    CHECK(cheetah_core_setup(NULL, &argv) == CHEETAH_ERR_ARGUMENT);
    options[0] = program, options[1] = np, options[2] = none;
    CHECK(cheetah_core_setup(&two, &list) == CHEETAH_ERR_ARGUMENT);
    CHECK(two == 2 && options[1] == np);
    two = 3;
    CHECK(cheetah_core_setup(&two, &list) == CHEETAH_ERR_ARGUMENT);
    two = -1;
    CHECK(cheetah_core_setup(&two, &list) == CHEETAH_ERR_ARGUMENT);
    all_are(CHEETAH_ERR_STATE);

    CHECK(cheetah_core_setup(&argc, &argv) == CHEETAH_SUCCESS);
    me = cheetah_core_mycontext();
    n = cheetah_core_ncontexts();
    if (argc == 2 && strcmp(argv[1], "function") == 0) {
        unregistered();
        return 0;
    }
    CHECK(cheetah_core_register_function(note) == 0);
    CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    arguments();
    forked();
    CHECK(cheetah_core_barrier() == CHEETAH_SUCCESS);
    CHECK(cheetah_core_finalize() == CHEETAH_SUCCESS);
    all_are(CHEETAH_ERR_STATE);
    if (me == 0)
        printf("all codes: %d contexts\n", n);
    return 0;
}
