/* Two-sided MPI: ranks 0 and 1 send each other messages. */
#include <mpi.h>

enum { WINDOW = 64 };

static double batch(const char *bench, long n, long size, char *buffer) {
    int rank;
    MPI_Request requests[WINDOW];
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now_ns();
    if (rank > 1) return 0;
    if (!strcmp(bench, "put-bell") || !strcmp(bench, "am")) {
        for (long i = 0; i < n; i++) {
            if (rank == 0) MPI_Send(buffer, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
            MPI_Recv(buffer, size, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (rank == 1) MPI_Send(buffer, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        }
        return (now_ns() - begin) / n / 2;
    }
    for (long i = 0; i < n; i += WINDOW) {
        int window = n - i < WINDOW ? n - i : WINDOW;
        for (int j = 0; j < window; j++)
            if (rank == 0) MPI_Isend(buffer, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[j]);
            else MPI_Irecv(buffer, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[j]);
        MPI_Waitall(window, requests, MPI_STATUSES_IGNORE);
    }
    /* All have come. */
    MPI_Sendrecv_replace(buffer, 1, MPI_BYTE, 1 - rank, 2, 1 - rank, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return (now_ns() - begin) / n;
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char *bench = argv[1];
    long batches = atol(argv[2]), shorten = atol(argv[3]);
    for (int i = 4; i < argc; i++) {
        long size = atol(argv[i]);
        char *buffer = calloc(size, 1);
        int is_stream = !strcmp(bench, "am-rate") || !strcmp(bench, "bandwidth");
        long n = is_stream ? operations(50000, 64 << 20, size, shorten) : operations(2000, 8 << 20, size, shorten);
        for (long b = -1; b < batches; b++) {
            double ns = batch(bench, n, size, buffer);
            if (rank == 0 && b >= 0) report(size, ns);
        }
        free(buffer);
    }
    MPI_Finalize();
    return 0;
}
