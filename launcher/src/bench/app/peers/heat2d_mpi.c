/* heat2d, C and MPI: the explicit 5-point scheme on the plate of `heat2d --open`, split by rows.
 *
 * The plate has WIDTH x HEIGHT cells. Its upper edge is held at 100 degrees and its other edges at 0; all cells between start at 20
 * degrees and are computed in each step. A rank sends its first and last row, computes the rows between while they are under way,
 * and then these two. The formula is the example's. The compiler may contract it to fused operations, which the example never does;
 * the results then differ in their last digits.
 *
 * usage: heat2d_mpi WIDTH HEIGHT STEPS */
#include "common.h"

static void relax(int width, int from, int to, double alpha, const double *restrict now, double *restrict next) {
  for (int y = from; y < to; y++) {
    const double *own = now + (size_t)y * width, *north = own - width, *south = own + width;
    double *out = next + (size_t)y * width;
    for (int x = 1; x < width - 1; x++)
      out[x] = own[x] + alpha * (((north[x] + south[x]) + (own[x - 1] + own[x + 1])) - 4 * own[x]);
  }
}

int main(int argc, char **argv) {
  begin(argc, argv, 3, "heat2d_mpi WIDTH HEIGHT STEPS");
  int width = atoi(argv[1]), height = atoi(argv[2]), steps = atoi(argv[3]);
  int first = (int)((long)height * rank / ranks), end = (int)((long)height * (rank + 1) / ranks), rows = end - first;
  /* Own rows are 1 to `rows`; row 0 and row rows + 1 are the neighbours'. */
  size_t cells = (size_t)(rows + 2) * width;
  double *now = calloc(cells, sizeof *now), *next = calloc(cells, sizeof *next);
  for (int y = 1; y <= rows; y++)
    for (int x = 0; x < width; x++) {
      int row = first + y - 1, is_edge = row == height - 1 || x == 0 || x == width - 1;
      now[(size_t)y * width + x] = next[(size_t)y * width + x] = row == 0 ? 100.0 : is_edge ? 0.0 : 20.0;
    }
  /* The rows that change: without the plate's edges. */
  int from = first == 0 ? 2 : 1, to = end == height ? rows : rows + 1;
  int up = rank > 0 ? rank - 1 : MPI_PROC_NULL, down = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  for (int step = 0; step < steps; step++) {
    MPI_Request requests[4];
    MPI_Irecv(now, width, MPI_DOUBLE, up, 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(now + (size_t)(rows + 1) * width, width, MPI_DOUBLE, down, 1, MPI_COMM_WORLD, &requests[1]);
    MPI_Isend(now + width, width, MPI_DOUBLE, up, 1, MPI_COMM_WORLD, &requests[2]);
    MPI_Isend(now + (size_t)rows * width, width, MPI_DOUBLE, down, 0, MPI_COMM_WORLD, &requests[3]);
    relax(width, 2, rows, 0.24, now, next);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    if (from == 1 && to > 1) relax(width, 1, 2, 0.24, now, next);
    if (to == rows + 1 && rows > 1) relax(width, rows, rows + 1, 0.24, now, next);
    double *other = now;
    now = next;
    next = other;
  }
  double mine = 0, sum, time = MPI_Wtime() - start, longest;
  for (size_t i = width; i < (size_t)(rows + 1) * width; i++) mine += now[i];
  MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  MPI_Reduce(&time, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    /* By which `bellwether bench app` sees that both solve the same problem. */
    printf("mean %.9f\n", sum / ((double)width * height));
    /* Seconds for each cell that changes. */
    result(longest / steps / ((double)(width - 2) * (height - 2)));
  }
  free(now);
  free(next);
  MPI_Finalize();
  return 0;
}
