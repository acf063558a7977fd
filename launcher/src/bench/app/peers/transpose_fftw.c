/* transpose, FFTW-MPI: a SIDE x SIDE matrix of doubles, spread by rows, transposed by FFTW's own plan.
 *
 * The plan is made with FFTW_MEASURE, outside of what is timed, from one array into another, as in the example.
 *
 * usage: transpose_fftw SIDE ROUNDS */
#include "common.h"
#include <fftw3-mpi.h>

int main(int argc, char **argv) {
  begin(argc, argv, 2, "transpose_fftw SIDE ROUNDS");
  fftw_mpi_init();
  ptrdiff_t side = atol(argv[1]), rows, first, rows_after, first_after;
  int rounds = atoi(argv[2]);
  ptrdiff_t room = fftw_mpi_local_size_2d_transposed(side, side, MPI_COMM_WORLD, &rows, &first, &rows_after, &first_after);
  double *from = fftw_alloc_real(2 * room), *to = fftw_alloc_real(2 * room);
  fftw_plan plan = fftw_mpi_plan_transpose(side, side, from, to, MPI_COMM_WORLD, FFTW_MEASURE);
  double *times = malloc(rounds * sizeof *times);
  long wrong = 0;
  for (int round = 0; round < rounds; round++) {
    for (ptrdiff_t i = 0; i < rows * side; i++) from[i] = first * side + i;
    for (ptrdiff_t i = 0; i < rows_after * side; i++) to[i] = -1;
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    fftw_execute(plan);
    MPI_Barrier(MPI_COMM_WORLD);
    times[round] = MPI_Wtime() - start;
    for (ptrdiff_t r = 0; r < rows_after; r++)
      for (ptrdiff_t c = 0; c < side; c++) wrong += to[r * side + c] != (double)(c * side + first_after + r);
  }
  long all;
  MPI_Reduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    if (all == 0) result(median(times, rounds));
    else fprintf(stderr, "error: %ld elements are wrong\n", all);
  }
  fftw_destroy_plan(plan);
  MPI_Finalize();
  return 0;
}
