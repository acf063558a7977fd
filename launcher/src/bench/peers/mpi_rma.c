/* One-sided MPI: rank 0 works on the window of rank 1, inside one passive epoch. Collectives and matching need no window. */
#include <mpi.h>

static MPI_Win window;
static char *own;      /* this rank's part of the window */
static char *private_buffer;
static char *received; /* from all ranks */
static MPI_Comm team;  /* of all ranks */
static int rank, ranks;

static void put(long size, long at) {
    MPI_Put(private_buffer, size, MPI_BYTE, 1 - rank, at, size, MPI_BYTE, window);
    MPI_Win_flush(1 - rank, window);
}

static void get(long size, long at) {
    MPI_Get(private_buffer, size, MPI_BYTE, 1 - rank, at, size, MPI_BYTE, window);
    MPI_Win_flush(1 - rank, window);
}

/* Waits for a word of the own window, and lets MPI work meanwhile. */
static void await(volatile uint64_t *flag, uint64_t value) {
    long looks = 0;
    while (*flag != value) {
        if (++looks % 1000 == 0) {
            int arrived;
            MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &arrived, MPI_STATUS_IGNORE);
            MPI_Win_sync(window);
        }
    }
    MPI_Win_sync(window);
}

/* Data, then a flag behind it. */
static void throw_data(long size, long flag_at, uint64_t *round) {
    put(size, 0);
    MPI_Put(round, 8, MPI_BYTE, 1 - rank, flag_at, 8, MPI_BYTE, window);
    MPI_Win_flush(1 - rank, window);
}

static double batch(const char *bench, long n, long size, uint64_t *round) {
    long places = size < REACH ? REACH / size : 1;
    uint64_t one = 1, old;
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = now_ns();
    if (!strcmp(bench, "barrier")) {
        for (long i = 0; i < n; i++) MPI_Barrier(MPI_COMM_WORLD);
    } else if (!strcmp(bench, "team-barrier")) {
        for (long i = 0; i < n; i++) MPI_Barrier(team);
    } else if (!strcmp(bench, "alltoall")) {
        for (long i = 0; i < n; i++)
            MPI_Alltoall(private_buffer, size, MPI_BYTE, received, size, MPI_BYTE, MPI_COMM_WORLD);
    } else if (!strcmp(bench, "matching")) {
        uint64_t value = 7;
        for (long i = 0; i < n && rank < 2; i++) {
            if (rank == 0) MPI_Send(&value, 8, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
            MPI_Recv(&value, 8, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (rank == 1) MPI_Send(&value, 8, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        }
        return (now_ns() - begin) / n / 2;
    } else if (!strcmp(bench, "alloc")) {
        for (long i = 0; i < n; i++) {
            MPI_Win made;
            void *memory;
            MPI_Win_allocate(8, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &made);
            MPI_Win_free(&made);
        }
    } else if (strstr(bench, "allreduce")) {
        for (long i = 0; i < n; i++)
            MPI_Allreduce(MPI_IN_PLACE, private_buffer, size / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    } else if (!strcmp(bench, "put-bell") && rank < 2) {
        long flag_at = (size + 63) / 64 * 64;
        volatile uint64_t *flag = (volatile uint64_t *)(own + flag_at);
        for (long i = 0; i < n; i++) {
            ++*round;
            if (rank == 0) throw_data(size, flag_at, round);
            await(flag, *round);
            if (rank == 1) throw_data(size, flag_at, round);
        }
        return (now_ns() - begin) / n / 2;
    } else if (rank == 0) {
        for (long i = 0; i < n; i++) {
            if (!strcmp(bench, "put") || !strcmp(bench, "bandwidth")) {
                put(size, i % places * size);
            } else if (!strcmp(bench, "get")) {
                get(size, i % places * size);
            } else {
                MPI_Fetch_and_op(&one, &old, MPI_UINT64_T, 1, 0, MPI_SUM, window);
                MPI_Win_flush(1, window);
            }
        }
    }
    return (now_ns() - begin) / n;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *bench = argv[1];
    int batches = atoi(argv[2]);
    long shorten = atol(argv[3]);
    int is_bulk = !strcmp(bench, "bandwidth"), is_sum = strstr(bench, "allreduce") != NULL;
    int is_alloc = !strcmp(bench, "alloc"), is_alltoall = !strcmp(bench, "alltoall");
    MPI_Comm_dup(MPI_COMM_WORLD, &team);
    for (int a = 4; a < argc; a++) {
        long size = atol(argv[a]) > 0 ? atol(argv[a]) : 8;
        long bytes = (size < REACH ? REACH : size) + 128;
        if (is_alltoall) bytes = ranks * size + 128;
        uint64_t round = 0;
        received = calloc(1, bytes);
        private_buffer = calloc(1, bytes);
        memset(private_buffer, is_sum ? 0 : 7, bytes);
        MPI_Win_allocate(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &own, &window);
        memset(own, 0, bytes);
        MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
        MPI_Barrier(MPI_COMM_WORLD);
        long n = is_bulk ? operations(2000, 4l << 20, size, shorten) : operations(5000, 8l << 20, size, shorten);
        if (is_alloc) n = operations(200, 8l << 20, size, shorten);
        if (is_alltoall) n = operations(5000, 8l << 20, size * ranks, shorten);
        for (int b = -2; b < batches; b++) {
            double ns = batch(bench, n, size, &round);
            if (b >= 0 && rank == 0) report(atol(argv[a]), ns);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_unlock_all(window);
        MPI_Win_free(&window);
        free(private_buffer);
        free(received);
    }
    MPI_Comm_free(&team);
    MPI_Finalize();
    return 0;
}
