/*
 * A loop whose last rank is killed on the way: the state vector, one byte a rank from malloc, names exactly it, and the others go on with
 * a group of their own. Usage: gaspi_loop kill | die | exit
 */
#include "gaspi_test.h"

/* The loss of a rank ends a call at once with GASPI_ERROR; only a call that hangs takes as long. Milliseconds. */
enum { LONG = 50000 };

int main(int argc, char **argv) {
    gaspi_state_vector_t states;
    gaspi_rank_t rank, dead;
    gaspi_group_t rest;
    gaspi_return_t code = GASPI_SUCCESS;
    gaspi_number_t size;
    long *box, one = 1, sum = 0;
    int step, failures = 0, by_kill = argc > 1 && strcmp(argv[1], "kill") == 0;
    start();
    CHECK(n >= 3);
    dead = (gaspi_rank_t)(n - 1);
    states = malloc(n);
    CHECK(states != NULL);
    box = make(0, 4096);
    GIVES(GASPI_ERR_INV_RANK, gaspi_proc_kill(me, BLOCK));
    for (step = 0; step < 10; step++) {
        if (step == 5 && me == dead && !by_kill)
            argc > 1 && strcmp(argv[1], "exit") == 0 ? exit(0) : (void)raise(SIGKILL);
        if (step == 5 && me == 0 && by_kill)
            OK(gaspi_proc_kill(dead, BLOCK));
        if (step == 5 && me == dead)
            for (;;)
                pause();
        box[0] = step;
        /* The rank before may be one step ahead. */
        code = gaspi_write_notify(0, 0, next, 0, 8 + 8 * (gaspi_offset_t)(step % 2), 8,
                                  (gaspi_notification_id_t)(step % 2), (gaspi_notification_t)step + 1, 0, BLOCK);
        if (code == GASPI_SUCCESS)
            code = gaspi_wait(0, LONG);
        if (code == GASPI_SUCCESS)
            code = gaspi_barrier(ALL, LONG);
        if (code != GASPI_SUCCESS) {
            failures++;
            break;
        }
        CHECK(await(0, (gaspi_notification_id_t)(step % 2)) == (gaspi_notification_t)step + 1);
        CHECK(box[1 + step % 2] == step);
    }
    /* A rank may still be in the barrier before when the other one is killed. */
    CHECK(failures == 1 && (step == 4 || step == 5) && code == GASPI_ERROR);
    /* It may be another failure that has ended the loop here: this rank is asked about the dead one only. */
    while ((code = gaspi_proc_ping(dead, 1000)) == GASPI_SUCCESS || code == GASPI_TIMEOUT)
        usleep(1000);
    CHECK(code == GASPI_ERROR);
    OK(gaspi_write(0, 0, dead, 0, 8, 8, 0, BLOCK));
    GIVES(GASPI_ERROR, gaspi_wait(0, LONG));
    memset(states, 77, n);
    OK(gaspi_state_vec_get(states));
    for (rank = 0; rank < n; rank++)
        CHECK(states[rank] == (rank == dead ? GASPI_STATE_CORRUPT : GASPI_STATE_HEALTHY));
    OK(gaspi_queue_purge(0, 1000));
    OK(gaspi_queue_size(0, &size));
    CHECK(size == 0);
    /* Programs for GPI-2 post to every rank, look at the state vector when a wait fails, and wait again until all is complete. */
    for (rank = 0; rank < n; rank++)
        OK(gaspi_write(0, 0, rank, 0, 24, 8, 0, BLOCK));
    GIVES(GASPI_ERROR, gaspi_wait(0, LONG));
    OK(gaspi_wait(0, LONG));
    OK(gaspi_queue_size(0, &size));
    CHECK(size == 0);
    OK(gaspi_group_create(&rest));
    for (rank = 0; rank < dead; rank++)
        OK(gaspi_group_add(rest, rank));
    OK(gaspi_group_commit(rest, LONG));
    for (step = 0; step < 3; step++)
        OK(gaspi_allreduce(&one, &sum, 1, GASPI_OP_SUM, GASPI_TYPE_LONG, rest, LONG));
    CHECK(sum == n - 1);
    OK(gaspi_barrier(rest, LONG));
    printf("loop: rank %u goes on with %ld\n", (unsigned)me, sum);
    free(states);
    OK(gaspi_proc_term(BLOCK));
    return 0;
}
