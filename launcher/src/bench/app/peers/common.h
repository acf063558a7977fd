/* What the programs in this folder share: headers, arguments, times, and the line with the result. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

/* Starts MPI. Without exactly `arguments` arguments rank 0 prints the usage, and all ranks exit with status 2. */
static inline void begin(int argc, char **argv, int arguments, const char *usage) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc == arguments + 1) return;
  if (rank == 0) fprintf(stderr, "usage: %s\n", usage);
  MPI_Finalize();
  exit(2);
}

/* The line that `bellwether bench app` reads: seconds for a unit of work. */
static inline void result(double seconds) { printf("app-peer %.9e\n", seconds); }

static inline int by_time(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The median; sorts the times. */
static inline double median(double *times, int rounds) {
  qsort(times, rounds, sizeof *times, by_time);
  return times[rounds / 2];
}

/* The finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), as in the examples. */
static inline uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}
