#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
    int rank, size;
    long *inbox, mine, sum;
    MPI_Win window;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Win_allocate(sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &inbox, &window);
    mine = rank;
    MPI_Win_fence(0, window);
    MPI_Put(&mine, 1, MPI_LONG, (rank + 1) % size, 0, 1, MPI_LONG, window);
    MPI_Win_fence(0, window);
    MPI_Allreduce(inbox, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) printf("sum %ld\n", sum);
    MPI_Win_free(&window);
    MPI_Finalize();
}
