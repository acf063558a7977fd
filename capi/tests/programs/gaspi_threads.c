/* Threads with a queue each: every thread writes round the ring with its own notification, and all count in one atomic word. */
#include "gaspi_test.h"

#include <GASPI_Threads.h>

enum { THREADS = 4, ROUNDS = 50, COUNT = 4096 };

static long *box;
static gaspi_queue_id_t queues[THREADS];
static int passed;

static void work(int id) {
    gaspi_atomic_value_t old;
    gaspi_offset_t mine = (gaspi_offset_t)id * 64;
    int round, own = -1;
    OK(gaspi_threads_get_tid(&own));
    CHECK(own == id);
    OK(gaspi_queue_create(&queues[id], BLOCK));
    gaspi_threads_sync();
    for (round = 1; round <= ROUNDS; round++) {
        box[id * 8] = round * 100 + id;
        OK(gaspi_write_notify(0, mine, next, 0, mine + 8, 8, (gaspi_notification_id_t)id, (gaspi_notification_t)round,
                              queues[id], BLOCK));
        OK(gaspi_wait(queues[id], BLOCK));
        CHECK(await(0, (gaspi_notification_id_t)id) == (gaspi_notification_t)round);
        CHECK(box[id * 8 + 1] == round * 100 + id);
        OK(gaspi_atomic_fetch_add(0, COUNT, 0, 1, &old, BLOCK));
        __atomic_fetch_add(&passed, 1, __ATOMIC_RELAXED);
        gaspi_threads_sync();
        CHECK(__atomic_load_n(&passed, __ATOMIC_RELAXED) >= round * THREADS);
        OK(gaspi_threads_sync_all(ALL, BLOCK));
    }
    OK(gaspi_queue_delete(queues[id]));
}

static void *run(void *argument) {
    int id = -1;
    CHECK(argument == box);
    OK(gaspi_threads_register(&id));
    work(id);
    return NULL;
}

int main(void) {
    int id = -1, total = -1, cores = 0, thread, other;
    start();
    box = make(0, 8192);
    GIVES(GASPI_ERROR, gaspi_threads_register(&id));
    GIVES(GASPI_ERROR, gaspi_threads_run(run, box));
    OK(gaspi_threads_get_num_cores(&cores));
    CHECK(cores >= 1);
    GIVES(GASPI_ERROR, gaspi_threads_init_user(0));
    OK(gaspi_threads_init_user(THREADS));
    GIVES(GASPI_ERROR, gaspi_threads_init_user(THREADS));
    OK(gaspi_threads_get_total(&total));
    CHECK(total == THREADS);
    GIVES(GASPI_ERR_NULLPTR, gaspi_threads_run(NULL, NULL));
    GIVES(GASPI_ERROR, gaspi_threads_get_tid(&id));
    for (thread = 1; thread < THREADS; thread++)
        OK(gaspi_threads_run(run, box));
    OK(gaspi_threads_register(&id));
    work(id);
    OK(gaspi_threads_term());
    GIVES(GASPI_ERROR, gaspi_threads_term());
    CHECK(passed == THREADS * ROUNDS);
    for (thread = 0; thread < THREADS; thread++)
        for (other = 0; other < thread; other++)
            CHECK(queues[thread] != queues[other]);
    OK(gaspi_barrier(ALL, BLOCK));
    if (me == 0)
        CHECK(box[COUNT / 8] == (long)n * THREADS * ROUNDS);
    OK(gaspi_threads_init(&total));
    CHECK(total == cores);
    OK(gaspi_threads_term());
    finish("threads");
    return 0;
}
