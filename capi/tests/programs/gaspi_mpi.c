/* A program that initialises MPI before GASPI: both number the processes alike, and each works while the other is there. */
#include "gaspi_test.h"

#include <mpi.h>

int main(int argc, char **argv) {
    enum { ROUNDS = 20 };
    int rank, size, sum, round;
    long *box;
    CHECK(MPI_Init(&argc, &argv) == MPI_SUCCESS);
    CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank) == MPI_SUCCESS);
    CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size) == MPI_SUCCESS);
    start();
    CHECK(rank == me && size == n);
    box = make(0, 4096);
    for (round = 0; round < ROUNDS; round++) {
        box[0] = 100 * round + rank;
        OK(gaspi_write_notify(0, 0, next, 0, sizeof *box, sizeof *box, 7, (gaspi_notification_t)round + 1, 0, BLOCK));
        CHECK(await(0, 7) == (gaspi_notification_t)round + 1);
        CHECK(box[1] == 100 * round + before);
        OK(gaspi_wait(0, BLOCK));
        /* Nobody begins the next round before all have read. */
        CHECK(MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS);
        CHECK(sum == size * (size - 1) / 2);
    }
    finish("mpi");
    CHECK(MPI_Finalize() == MPI_SUCCESS);
    return 0;
}
