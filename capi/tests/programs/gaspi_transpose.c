/* A matrix whose rows are spread over the ranks is transposed: each block goes with write_notify, whose id is the sender. */
#include "gaspi_test.h"

int main(void) {
    enum { BLOCK_ROWS = 16, TIMES = 5 };
    const gaspi_size_t block = BLOCK_ROWS * BLOCK_ROWS;
    double *mine, *theirs;
    int time, row, column;
    gaspi_rank_t rank, seen;
    start();
    mine = make(0, n * block * sizeof(double));
    theirs = make(1, n * block * sizeof(double));
    for (time = 1; time <= TIMES; time++) {
        for (rank = 0; rank < n; rank++)
            for (row = 0; row < BLOCK_ROWS; row++)
                for (column = 0; column < BLOCK_ROWS; column++)
                    /* Block by block, each transposed: entry (me * rows + row, rank * rows + column). */
                    mine[rank * block + (gaspi_size_t)(column * BLOCK_ROWS + row)] =
                        time * 1e6 + (me * BLOCK_ROWS + row) * 1e3 + (rank * BLOCK_ROWS + column);
        for (rank = 0; rank < n; rank++)
            OK(gaspi_write_notify(0, rank * block * sizeof(double), rank, 1, me * block * sizeof(double),
                                  block * sizeof(double), me, (gaspi_notification_t)time, 0, BLOCK));
        for (seen = 0; seen < n; seen++) {
            gaspi_notification_id_t from = n;
            gaspi_notification_t value = 0;
            OK(gaspi_notify_waitsome(1, 0, n, &from, BLOCK));
            OK(gaspi_notify_reset(1, from, &value));
            CHECK(from < n && value == (gaspi_notification_t)time);
            for (row = 0; row < BLOCK_ROWS; row++)
                for (column = 0; column < BLOCK_ROWS; column++)
                    CHECK(theirs[from * block + (gaspi_size_t)(row * BLOCK_ROWS + column)] ==
                          time * 1e6 + ((int)from * BLOCK_ROWS + column) * 1e3 + (me * BLOCK_ROWS + row));
        }
        OK(gaspi_wait(0, BLOCK));
        OK(gaspi_barrier(ALL, BLOCK));
    }
    finish("transpose");
    return 0;
}
