/* bfs, C and MPI: breadth-first search in the example's R-MAT graph, level by level, from a vertex with most neighbours.
 *
 * Vertices are dealt out in blocks. Top-down, a rank sends (vertex, parent) to the vertex's owner by MPI_Alltoallv; bottom-up, all ranks
 * have the frontier as a bitmap by MPI_Allgather. The direction changes by the example's rule (Beamer, 2012).
 *
 * usage: bfs_mpi SCALE */
#include "common.h"

enum { EDGES_PER_VERTEX = 16, SEED = 1 };
static const double ALPHA = 14.0, BETA = 24.0;

static uint64_t hash(uint64_t seed, uint64_t number) {
  const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
  return mix(mix(seed + golden) + (number + 1) * golden);
}

static uint32_t scatter(uint32_t vertex, int scale) {
  uint32_t mask = (uint32_t)((UINT64_C(1) << scale) - 1);
  for (uint64_t round = 0; round < 3; round++) {
    uint32_t odd = (uint32_t)mix(SEED + round) | 1;
    vertex = (vertex * odd + (odd >> 7)) & mask;
    vertex ^= vertex >> ((scale + 1) / 2);
  }
  return vertex;
}

static void edge(uint64_t number, int scale, uint32_t *from, uint32_t *to) {
  uint64_t seed = hash(SEED, number);
  uint32_t a = 0, b = 0;
  for (int level = 0; level < scale; level++) {
    double chance = (double)((hash(seed, (uint64_t)level + 1) >> 11) + 1) * (1.0 / 9007199254740992.0);
    int down = chance > 0.57 + 0.19, right = (chance > 0.57 && !down) || chance > 0.57 + 0.19 + 0.19;
    a = a << 1 | (uint32_t)down, b = b << 1 | (uint32_t)right;
  }
  *from = scatter(a, scale), *to = scatter(b, scale);
}

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static void *room(size_t bytes) {
  void *memory = calloc(bytes + 64, 1);
  if (!memory) MPI_Abort(MPI_COMM_WORLD, 3);
  return memory;
}

int main(int argc, char **argv) {
  begin(argc, argv, 1, "bfs_mpi SCALE");
  int scale = atoi(argv[1]);
  size_t vertices = (size_t)1 << scale, block = ((vertices + ranks - 1) / ranks + 63) / 64 * 64;
  size_t first = rank * block < vertices ? rank * block : vertices;
  size_t end = first + block < vertices ? first + block : vertices, own = end - first;

  /* Every rank draws all edges and keeps those of its vertices: simple, and not timed. */
  size_t drawn = (size_t)EDGES_PER_VERTEX << scale, count = 0;
  uint64_t *mine = room(2 * drawn * sizeof *mine);
  for (uint64_t number = 0; number < drawn; number++) {
    uint32_t a, b;
    edge(number, scale, &a, &b);
    if (a == b) continue;
    if (a >= first && a < end) mine[count++] = (uint64_t)a << 32 | b;
    if (b >= first && b < end) mine[count++] = (uint64_t)b << 32 | a;
  }
  qsort(mine, count, sizeof *mine, by_value);
  size_t *starts = room((own + 1) * sizeof *starts), edges = 0;
  uint32_t *neighbours = room(count * sizeof *neighbours);
  for (size_t i = 0; i < count; i++) {
    if (i > 0 && mine[i] == mine[i - 1]) continue;
    neighbours[edges++] = (uint32_t)mine[i];
    starts[(mine[i] >> 32) - first + 1]++;
  }
  for (size_t v = 0; v < own; v++) starts[v + 1] += starts[v];
  free(mine);

  struct { long degree; int vertex; } best = {-1, 0}, hub;
  for (size_t v = 0; v < own; v++)
    if ((long)(starts[v + 1] - starts[v]) > best.degree) best.degree = (long)(starts[v + 1] - starts[v]), best.vertex = (int)(first + v);
  MPI_Allreduce(&best, &hub, 1, MPI_LONG_INT, MPI_MAXLOC, MPI_COMM_WORLD);

  uint32_t *parents = room(own * sizeof *parents), *frontier = room(own * sizeof *frontier), *next = room(own * sizeof *next);
  memset(parents, 0xff, own * sizeof *parents);
  size_t words = block / 64;
  uint64_t *bits = room(words * ranks * sizeof *bits), *bits_own = room(words * sizeof *bits_own);
  uint32_t *out = room(2 * edges * sizeof *out), *in = NULL;
  size_t in_room = 0, size = 0;
  int *counts = room(4 * ranks * sizeof *counts), *places = counts + ranks, *comes = places + ranks, *from = comes + ranks;

  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  if ((size_t)hub.vertex >= first && (size_t)hub.vertex < end)
    parents[hub.vertex - first] = (uint32_t)hub.vertex, frontier[size++] = (uint32_t)(hub.vertex - first);
  int up = 0;
  for (;;) {
    long facts[3] = {(long)size, 0, 0}, all[3];
    for (size_t i = 0; i < size; i++) facts[1] += (long)(starts[frontier[i] + 1] - starts[frontier[i]]);
    if (!up)
      for (size_t v = 0; v < own; v++) facts[2] += parents[v] == UINT32_MAX ? (long)(starts[v + 1] - starts[v]) : 0;
    MPI_Allreduce(facts, all, 3, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (all[0] == 0) break;
    up = up ? (double)all[0] >= (double)vertices / BETA : (double)all[1] > (double)all[2] / ALPHA;
    size_t found = 0;
    if (up) {
      memset(bits_own, 0, words * sizeof *bits_own);
      for (size_t i = 0; i < size; i++) bits_own[frontier[i] / 64] |= UINT64_C(1) << frontier[i] % 64;
      MPI_Allgather(bits_own, (int)words, MPI_UINT64_T, bits, (int)words, MPI_UINT64_T, MPI_COMM_WORLD);
      for (size_t v = 0; v < own; v++) {
        if (parents[v] != UINT32_MAX) continue;
        for (size_t e = starts[v]; e < starts[v + 1]; e++) {
          uint32_t other = neighbours[e];
          if (bits[other / 64] >> other % 64 & 1) {
            parents[v] = other, next[found++] = (uint32_t)v;
            break;
          }
        }
      }
    } else {
      memset(counts, 0, ranks * sizeof *counts);
      for (size_t i = 0; i < size; i++)
        for (size_t e = starts[frontier[i]]; e < starts[frontier[i] + 1]; e++) counts[neighbours[e] / block] += 2;
      for (int r = 0, sum = 0; r < ranks; r++) places[r] = sum, sum += counts[r], counts[r] = 0;
      for (size_t i = 0; i < size; i++)
        for (size_t e = starts[frontier[i]]; e < starts[frontier[i] + 1]; e++) {
          int to = (int)(neighbours[e] / block);
          out[places[to] + counts[to]] = neighbours[e], out[places[to] + counts[to] + 1] = (uint32_t)(first + frontier[i]);
          counts[to] += 2;
        }
      MPI_Alltoall(counts, 1, MPI_INT, comes, 1, MPI_INT, MPI_COMM_WORLD);
      size_t total = 0;
      for (int r = 0; r < ranks; r++) from[r] = (int)total, total += (size_t)comes[r];
      if (total > in_room) free(in), in = room(total * sizeof *in), in_room = total;
      MPI_Alltoallv(out, counts, places, MPI_UINT32_T, in, comes, from, MPI_UINT32_T, MPI_COMM_WORLD);
      for (size_t i = 0; i < total; i += 2) {
        size_t v = in[i] - first;
        if (parents[v] == UINT32_MAX) parents[v] = in[i + 1], next[found++] = (uint32_t)v;
      }
    }
    uint32_t *other = frontier;
    frontier = next, next = other, size = found;
  }
  MPI_Barrier(MPI_COMM_WORLD);
  double time = MPI_Wtime() - start;
  long reached = 0, sum;
  for (size_t v = 0; v < own; v++) reached += parents[v] != UINT32_MAX ? (long)(starts[v + 1] - starts[v]) : 0;
  MPI_Reduce(&reached, &sum, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    printf("edges %ld\n", sum / 2);
    result(time / ((double)sum / 2));
  }
  MPI_Finalize();
  return 0;
}
