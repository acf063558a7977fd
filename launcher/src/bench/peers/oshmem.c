/* OpenSHMEM: rank 0 works on the symmetric memory of rank 1. */
#include <shmem.h>

static char *symmetric;
static uint64_t *flag;
static char *private_buffer;
static int rank;

static void put(long size, long at) {
    if (size == 8) {
        shmem_uint64_p((uint64_t *)(symmetric + at), 7, 1 - rank);
    } else {
        shmem_putmem(symmetric + at, private_buffer, size, 1 - rank);
    }
    shmem_quiet();
}

static void get(long size, long at) {
    if (size == 8) {
        *(volatile uint64_t *)private_buffer = shmem_uint64_g((uint64_t *)(symmetric + at), 1 - rank);
    } else {
        shmem_getmem(private_buffer, symmetric + at, size, 1 - rank);
    }
}

/* Data, then a flag after it. */
static void throw_data(long size, uint64_t round) {
    if (size == 8) {
        shmem_uint64_p((uint64_t *)symmetric, round, 1 - rank);
    } else {
        shmem_putmem(symmetric, private_buffer, size, 1 - rank);
    }
    shmem_fence();
    shmem_uint64_p(flag, round, 1 - rank);
}

static double batch(const char *bench, long n, long size, uint64_t *round) {
    long places = size < REACH ? REACH / size : 1;
    shmem_barrier_all();
    double begin = now_ns();
    if (!strcmp(bench, "barrier")) {
        for (long i = 0; i < n; i++) shmem_barrier_all();
    } else if (!strcmp(bench, "put-bell") && rank < 2) {
        for (long i = 0; i < n; i++) {
            ++*round;
            if (rank == 0) throw_data(size, *round);
            shmem_uint64_wait_until(flag, SHMEM_CMP_GE, *round);
            if (rank == 1) throw_data(size, *round);
        }
        return (now_ns() - begin) / n / 2;
    } else if (rank == 0) {
        for (long i = 0; i < n; i++) {
            if (!strcmp(bench, "put") || !strcmp(bench, "bandwidth")) {
                put(size, i % places * size);
            } else if (!strcmp(bench, "get")) {
                get(size, i % places * size);
            } else {
                *(volatile unsigned long *)private_buffer = shmem_ulong_atomic_fetch_add((unsigned long *)symmetric, 1, 1);
            }
        }
    }
    return (now_ns() - begin) / n;
}

int main(int argc, char **argv) {
    shmem_init();
    rank = shmem_my_pe();
    const char *bench = argv[1];
    int batches = atoi(argv[2]);
    long shorten = atol(argv[3]);
    int is_bulk = !strcmp(bench, "bandwidth");
    flag = shmem_align(64, 64);
    for (int a = 4; a < argc; a++) {
        long size = atol(argv[a]) > 0 ? atol(argv[a]) : 8;
        long bytes = size < REACH ? REACH : size;
        uint64_t round = 0;
        private_buffer = malloc(bytes);
        memset(private_buffer, 7, bytes);
        symmetric = shmem_align(64, bytes);
        if (!symmetric) {
            fprintf(stderr, "no symmetric memory for %ld bytes\n", bytes);
            shmem_global_exit(1);
        }
        memset(symmetric, 0, bytes);
        *flag = 0;
        shmem_barrier_all();
        long n = is_bulk ? operations(2000, 4l << 20, size, shorten) : operations(5000, 8l << 20, size, shorten);
        for (int b = -2; b < batches; b++) {
            double ns = batch(bench, n, size, &round);
            if (b >= 0 && rank == 0) report(atol(argv[a]), ns);
        }
        shmem_barrier_all();
        shmem_free(symmetric);
        free(private_buffer);
    }
    shmem_finalize();
    return 0;
}
