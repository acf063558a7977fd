/* Calls that the other programs do not make: memory of the program, lists, reads with notifications, compare and swap, queries. */
#include "gaspi_test.h"

enum { WORDS = 512, PARTS = 32 };

static long fixed[WORDS];

static void memory_of_the_program(void) {
    gaspi_pointer_t start_of = NULL;
    long *bound = calloc(WORDS, sizeof(long));
    gaspi_size_t size = 0;
    CHECK(bound != NULL);
    OK(gaspi_segment_use(1, fixed, sizeof fixed, ALL, BLOCK, 0));
    OK(gaspi_segment_bind(2, bound, WORDS * sizeof(long), 0));
    OK(gaspi_barrier(ALL, BLOCK));
    /* It is there, and not registered. */
    if (n > 1)
        GIVES(GASPI_ERR_INV_SEG, gaspi_notify(2, next, 9, 4, 0, BLOCK));
    OK(gaspi_barrier(ALL, BLOCK));
    OK(gaspi_segment_register(2, before, BLOCK));
    OK(gaspi_segment_ptr(1, &start_of));
    CHECK(start_of == fixed);
    OK(gaspi_segment_ptr(2, &start_of));
    CHECK(start_of == bound);
    OK(gaspi_barrier(ALL, BLOCK));
    OK(gaspi_segment_size(2, next, &size));
    CHECK(size == WORDS * sizeof(long));
    fixed[0] = 300 + me;
    OK(gaspi_write_notify(1, 0, next, 2, 80, sizeof(long), 9, 4, 0, BLOCK));
    OK(gaspi_wait(0, BLOCK));
    CHECK(await(2, 9) == 4 && bound[10] == 300 + before);
    OK(gaspi_barrier(ALL, BLOCK));
    OK(gaspi_segment_delete(2));
    OK(gaspi_segment_delete(1));
    GIVES(GASPI_ERR_INV_SEG, gaspi_segment_ptr(1, &start_of));
    CHECK(bound[10] == 300 + before && fixed[0] == 300 + me);
    free(bound);
}

static void lists(long *first, long *second) {
    gaspi_segment_id_t from[PARTS], to[PARTS];
    gaspi_offset_t from_at[PARTS], to_at[PARTS];
    gaspi_size_t sizes[PARTS];
    int i;
    for (i = 0; i < PARTS; i++) {
        from[i] = 3, to[i] = (gaspi_segment_id_t)(i % 2 ? 3 : 4);
        from_at[i] = (gaspi_offset_t)i * 8, to_at[i] = 2048 + (gaspi_offset_t)(PARTS - 1 - i) * 8, sizes[i] = 8;
        first[i] = me * 1000 + i;
    }
    OK(gaspi_write_list(PARTS, from, from_at, next, to, to_at, sizes, 1, BLOCK));
    OK(gaspi_notify(4, next, 1, 1, 1, BLOCK));
    CHECK(await(4, 1) == 1);
    for (i = 0; i < PARTS; i++)
        CHECK((i % 2 ? first : second)[256 + PARTS - 1 - i] == before * 1000 + i);
    OK(gaspi_wait(1, BLOCK));
    OK(gaspi_barrier(ALL, BLOCK));
    for (i = 0; i < PARTS; i++)
        to_at[i] -= 1024, first[i] += 500;
    OK(gaspi_write_list_notify(PARTS, from, from_at, next, to, to_at, sizes, 4, 2, 6, 1, BLOCK));
    CHECK(await(4, 2) == 6);
    for (i = 0; i < PARTS; i++)
        CHECK((i % 2 ? first : second)[128 + PARTS - 1 - i] == before * 1000 + 500 + i);
    OK(gaspi_wait(1, BLOCK));
    OK(gaspi_barrier(ALL, BLOCK));
    /* Back, by reads: what `next` got of this rank. */
    for (i = 0; i < PARTS; i++)
        from_at[i] = 3072 + (gaspi_offset_t)i * 8;
    OK(gaspi_read_list(PARTS, from, from_at, next, to, to_at, sizes, 1, BLOCK));
    OK(gaspi_wait(1, BLOCK));
    for (i = 0; i < PARTS; i++) {
        CHECK(first[384 + i] == me * 1000 + 500 + i);
        first[384 + i] = 0;
    }
    OK(gaspi_read_list_notify(PARTS, from, from_at, next, to, to_at, sizes, 4, 3, 1, BLOCK));
    CHECK(await(4, 3) == 1);
    for (i = 0; i < PARTS; i++)
        CHECK(first[384 + i] == me * 1000 + 500 + i);
    OK(gaspi_read_notify(3, 4000, next, 3, 0, 8, 4, 1, BLOCK));
    CHECK(await(3, 4) == 1 && first[500] == next * 1000 + 500);
    OK(gaspi_wait(1, BLOCK));
    OK(gaspi_barrier(ALL, BLOCK));
}

/* A lock at rank 0 by compare and swap: what it guards is read and written by one rank at a time. */
static void locked(long *first) {
    enum { TIMES = 20, LOCK = 8, GUARDED = 16, COPY = 24 };
    gaspi_atomic_value_t old;
    int time;
    if (me == 0)
        first[LOCK / 8] = first[GUARDED / 8] = 0;
    OK(gaspi_barrier(ALL, BLOCK));
    for (time = 0; time < TIMES; time++) {
        do
            OK(gaspi_atomic_compare_swap(3, LOCK, 0, 0, me + 1ul, &old, BLOCK));
        while (old != 0);
        OK(gaspi_read(3, COPY, 0, 3, GUARDED, 8, 0, BLOCK));
        OK(gaspi_wait(0, BLOCK));
        first[COPY / 8] += 1;
        OK(gaspi_write(3, COPY, 0, 3, GUARDED, 8, 0, BLOCK));
        OK(gaspi_wait(0, BLOCK));
        /* The write is there before the lock is free: it is read back. */
        first[COPY / 8 + 1] = first[COPY / 8];
        do {
            OK(gaspi_read(3, COPY, 0, 3, GUARDED, 8, 0, BLOCK));
            OK(gaspi_wait(0, BLOCK));
        } while (first[COPY / 8] != first[COPY / 8 + 1]);
        OK(gaspi_atomic_compare_swap(3, LOCK, 0, me + 1ul, 0, &old, BLOCK));
        CHECK(old == me + 1ul);
    }
    OK(gaspi_barrier(ALL, BLOCK));
    CHECK(me != 0 || first[GUARDED / 8] == (long)n * TIMES);
}

/* What a rank prints at the next one comes out of that one's standard output, a file meanwhile. */
static void printed_there(void) {
    char expected[64], came[64] = "";
    FILE *file = tmpfile();
    int output = dup(1);
    ssize_t len = 0;
    CHECK(file != NULL && output >= 0 && fflush(stdout) == 0 && dup2(fileno(file), 1) == 1);
    OK(gaspi_barrier(ALL, BLOCK));
    gaspi_printf_to(next, "from %u to %u\n", (unsigned)me, (unsigned)next);
    snprintf(expected, sizeof expected, "[%u] from %u to %u\n", (unsigned)before, (unsigned)before, (unsigned)me);
    /* The test ends the job if it does not come. */
    while (len < (ssize_t)strlen(expected)) {
        len = pread(fileno(file), came, sizeof came - 1, 0);
        CHECK(len >= 0);
    }
    came[len] = 0;
    CHECK(strcmp(came, expected) == 0);
    CHECK(dup2(output, 1) == 1 && close(output) == 0 && fclose(file) == 0);
}

int main(void) {
    gaspi_state_t states[64];
    gaspi_number_t groups = 0;
    gaspi_rank_t rank;
    long *first, *second;
    start();
    CHECK(n <= 64);
    memory_of_the_program();
    first = make(3, WORDS * sizeof(long)), second = make(4, WORDS * sizeof(long));
    lists(first, second);
    locked(first);
    memset(states, 77, sizeof states);
    OK(gaspi_state_vec_get(states));
    for (rank = 0; rank < n; rank++) {
        CHECK(states[rank] == GASPI_STATE_HEALTHY);
        OK(gaspi_proc_ping(rank, BLOCK));
        OK(gaspi_connect(rank, BLOCK));
        OK(gaspi_disconnect(rank, BLOCK));
    }
    CHECK(n == 64 || states[n] == 77);
    OK(gaspi_group_num(&groups));
    CHECK(groups == 1);
    OK(gaspi_queue_purge(1, BLOCK));
    printed_there();
    finish("calls");
    return 0;
}
