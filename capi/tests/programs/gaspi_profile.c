/* A program that defines gaspi_write itself counts its own writes, and the library does not call it. */
#include "gaspi_test.h"

#include <PGASPI.h>

static int writes;

gaspi_return_t gaspi_write(const gaspi_segment_id_t local, const gaspi_offset_t at, const gaspi_rank_t rank,
                           const gaspi_segment_id_t remote, const gaspi_offset_t there, const gaspi_size_t size,
                           const gaspi_queue_id_t queue, const gaspi_timeout_t timeout) {
    writes++;
    return pgaspi_write(local, at, rank, remote, there, size, queue, timeout);
}

int main(void) {
    long *box;
    start();
    box = make(0, 64);
    box[0] = 5 + me;
    OK(gaspi_write(0, 0, next, 0, 8, 8, 0, BLOCK));
    OK(gaspi_notify(0, next, 1, 1, 0, BLOCK));
    OK(gaspi_write_notify(0, 0, next, 0, 16, 8, 2, 1, 0, BLOCK));
    OK(gaspi_wait(0, BLOCK));
    CHECK(await(0, 1) == 1 && await(0, 2) == 1);
    CHECK(box[1] == 5 + before && box[2] == 5 + before && writes == 1);
    finish("profile");
    return 0;
}
