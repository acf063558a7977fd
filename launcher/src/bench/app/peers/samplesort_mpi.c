/* samplesort, C and MPI: KEYS random 32-bit keys, spread evenly, sorted over all ranks.
 *
 * Each rank sorts its keys by radix (least significant byte first), splitters come from 64 samples of each rank, MPI_Alltoallv
 * moves the ranges, and each rank sorts what it got by radix again.
 *
 * usage: samplesort_mpi KEYS ROUNDS */
#include "common.h"

enum { SAMPLES = 64 };

static int by_key(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

static void radix(uint32_t *keys, uint32_t *spare, size_t count) {
  static size_t places[4][256];
  memset(places, 0, sizeof places);
  for (size_t i = 0; i < count; i++)
    for (int byte = 0; byte < 4; byte++) places[byte][keys[i] >> 8 * byte & 255]++;
  for (int byte = 0; byte < 4; byte++) {
    size_t sum = 0;
    for (int value = 0; value < 256; value++) {
      size_t here = places[byte][value];
      places[byte][value] = sum;
      sum += here;
    }
    for (size_t i = 0; i < count; i++) spare[places[byte][keys[i] >> 8 * byte & 255]++] = keys[i];
    uint32_t *other = keys;
    keys = spare;
    spare = other;
  }
}

int main(int argc, char **argv) {
  begin(argc, argv, 2, "samplesort_mpi KEYS ROUNDS");
  uint64_t keys = strtoull(argv[1], NULL, 10), first = keys * rank / ranks, end = keys * (rank + 1) / ranks;
  int rounds = atoi(argv[2]);
  size_t own = end - first, room = 2 * (keys / ranks + 1) + 4096;
  uint32_t *start_keys = malloc(own * 4 + 4), *mine = malloc(own * 4 + 4), *got = malloc(room * 4), *spare = malloc(room * 4);
  uint32_t samples[SAMPLES], *all = malloc((size_t)ranks * SAMPLES * 4);
  int *counts = malloc(4 * ranks * sizeof *counts), *places = counts + ranks, *comes = places + ranks, *from = comes + ranks;
  double *times = malloc(rounds * sizeof *times);
  for (size_t i = 0; i < own; i++) start_keys[i] = (uint32_t)mix((first + i + 1) * UINT64_C(0x9e3779b97f4a7c15));
  long total = 0, wrong = 0;
  for (int round = 0; round < rounds; round++) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    memcpy(mine, start_keys, own * 4);
    radix(mine, spare, own);
    for (int i = 0; i < SAMPLES; i++) samples[i] = own ? mine[(2 * i + 1) * own / (2 * SAMPLES)] : UINT32_MAX;
    MPI_Allgather(samples, SAMPLES, MPI_UINT32_T, all, SAMPLES, MPI_UINT32_T, MPI_COMM_WORLD);
    qsort(all, (size_t)ranks * SAMPLES, 4, by_key);
    size_t at = 0;
    for (int r = 0; r < ranks; r++) {
      size_t stop = own;
      if (r + 1 < ranks) {
        uint32_t splitter = all[(size_t)(r + 1) * SAMPLES];
        size_t low = at, high = own;
        while (low < high) {
          size_t middle = low + (high - low) / 2;
          if (mine[middle] < splitter) low = middle + 1;
          else high = middle;
        }
        stop = low;
      }
      counts[r] = (int)(stop - at), places[r] = (int)at;
      at = stop;
    }
    MPI_Alltoall(counts, 1, MPI_INT, comes, 1, MPI_INT, MPI_COMM_WORLD);
    total = 0;
    for (int r = 0; r < ranks; r++) from[r] = (int)total, total += comes[r];
    if ((size_t)total > room) MPI_Abort(MPI_COMM_WORLD, 3);
    MPI_Alltoallv(mine, counts, places, MPI_UINT32_T, got, comes, from, MPI_UINT32_T, MPI_COMM_WORLD);
    radix(got, spare, total);
    MPI_Barrier(MPI_COMM_WORLD);
    times[round] = MPI_Wtime() - start;
    for (long i = 1; i < total; i++) wrong += got[i - 1] > got[i];
  }
  long sums[2] = {total, wrong}, both[2];
  MPI_Reduce(sums, both, 2, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    if (both[0] == (long)keys && both[1] == 0) result(median(times, rounds));
    else fprintf(stderr, "error: %ld keys, %ld in the wrong order\n", both[0], both[1]);
  }
  MPI_Finalize();
  return 0;
}
