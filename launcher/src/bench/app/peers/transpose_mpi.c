/* transpose, C and MPI: a SIDE x SIDE matrix of doubles, spread by rows. Each rank packs the block for each rank already transposed,
 * in tiles, MPI_Alltoallv moves the blocks, and their rows are copied to where they belong.
 *
 * usage: transpose_mpi SIDE ROUNDS */
#include "common.h"

enum { TILE = 32 };

static long least(long a, long b) { return a < b ? a : b; }

int main(int argc, char **argv) {
  begin(argc, argv, 2, "transpose_mpi SIDE ROUNDS");
  long side = atol(argv[1]);
  int rounds = atoi(argv[2]);
#define FIRST(r) (side * (r) / ranks)
  long first = FIRST(rank), rows = FIRST(rank + 1) - first;
  size_t cells = (size_t)rows * side;
  double *from = malloc(cells * sizeof *from), *to = malloc(cells * sizeof *to);
  double *out = malloc(cells * sizeof *out), *in = malloc(cells * sizeof *in), *times = malloc(rounds * sizeof *times);
  int *counts = malloc(2 * ranks * sizeof *counts), *places = counts + ranks;
  for (int r = 0; r < ranks; r++) {
    counts[r] = (int)((FIRST(r + 1) - FIRST(r)) * rows);
    places[r] = (int)(FIRST(r) * rows);
  }
  long wrong = 0;
  for (int round = 0; round < rounds; round++) {
    for (size_t i = 0; i < cells; i++) from[i] = (double)(first * side + (long)i), to[i] = -1;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int r = 0; r < ranks; r++) {
      double *block = out + places[r];
      long left = FIRST(r), width = FIRST(r + 1) - left;
      for (long y0 = 0; y0 < rows; y0 += TILE)
        for (long x0 = 0; x0 < width; x0 += TILE)
          for (long x = x0; x < least(x0 + TILE, width); x++)
            for (long y = y0; y < least(y0 + TILE, rows); y++) block[x * rows + y] = from[y * side + left + x];
    }
    MPI_Alltoallv(out, counts, places, MPI_DOUBLE, in, counts, places, MPI_DOUBLE, MPI_COMM_WORLD);
    for (int r = 0; r < ranks; r++) {
      long left = FIRST(r), width = FIRST(r + 1) - left;
      for (long y = 0; y < rows; y++) memcpy(to + y * side + left, in + places[r] + y * width, width * sizeof *to);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    times[round] = MPI_Wtime() - start;
    for (long y = 0; y < rows; y++)
      for (long x = 0; x < side; x++) wrong += to[y * side + x] != (double)(x * side + first + y);
  }
  long all;
  MPI_Reduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    if (all == 0) result(median(times, rounds));
    else fprintf(stderr, "error: %ld elements are wrong\n", all);
  }
  MPI_Finalize();
  return 0;
}
