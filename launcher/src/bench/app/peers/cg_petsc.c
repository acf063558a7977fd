/* cg, PETSc: the 5-point Laplacian of a SIDE x SIDE grid with zero boundary, conjugate gradients without preconditioner.
 *
 * As the example: the right-hand side is the matrix times a known vector, the residual's norm is known after each
 * iteration, and the number of iterations is fixed. The norm is the natural one: without preconditioner it is sqrt(r'r),
 * which the method has anyway, so an iteration takes two reductions; PETSc's default norm takes a third.
 *
 * usage: cg_petsc SIDE ITERATIONS */
#include "common.h"
#include <petscksp.h>

int main(int argc, char **argv) {
  begin(argc, argv, 2, "cg_petsc SIDE ITERATIONS");
  PetscInt side = atoi(argv[1]), iterations = atoi(argv[2]), rows = side * side, first, end;
  PetscCall(PetscInitialize(&argc, &argv, NULL, NULL));

  Mat matrix;
  PetscCall(MatCreateAIJ(PETSC_COMM_WORLD, PETSC_DECIDE, PETSC_DECIDE, rows, rows, 5, NULL, 2, NULL, &matrix));
  PetscCall(MatGetOwnershipRange(matrix, &first, &end));
  for (PetscInt row = first; row < end; row++) {
    PetscInt y = row / side, x = row % side, count = 0, columns[5];
    PetscScalar values[5];
    if (y > 0) columns[count] = row - side, values[count++] = -1.0;
    if (x > 0) columns[count] = row - 1, values[count++] = -1.0;
    columns[count] = row, values[count++] = 4.0;
    if (x + 1 < side) columns[count] = row + 1, values[count++] = -1.0;
    if (y + 1 < side) columns[count] = row + side, values[count++] = -1.0;
    PetscCall(MatSetValues(matrix, 1, &row, count, columns, values, INSERT_VALUES));
  }
  PetscCall(MatAssemblyBegin(matrix, MAT_FINAL_ASSEMBLY));
  PetscCall(MatAssemblyEnd(matrix, MAT_FINAL_ASSEMBLY));
  PetscCall(MatSetOption(matrix, MAT_SYMMETRIC, PETSC_TRUE));

  Vec x, b;
  PetscCall(MatCreateVecs(matrix, &x, &b));
  for (PetscInt row = first; row < end; row++) {
    uint64_t word = ((uint64_t)row + 1) * UINT64_C(0x9e3779b97f4a7c15) >> 11;
    PetscCall(VecSetValue(x, row, (double)word / 9007199254740992.0, INSERT_VALUES));
  }
  PetscCall(VecAssemblyBegin(x));
  PetscCall(VecAssemblyEnd(x));
  PetscCall(MatMult(matrix, x, b));

  KSP solver;
  PC none;
  PetscCall(KSPCreate(PETSC_COMM_WORLD, &solver));
  PetscCall(KSPSetOperators(solver, matrix, matrix));
  PetscCall(KSPSetType(solver, KSPCG));
  PetscCall(KSPGetPC(solver, &none));
  PetscCall(PCSetType(none, PCNONE));
  PetscCall(KSPSetNormType(solver, KSP_NORM_NATURAL));
  PetscCall(KSPSetTolerances(solver, 1e-300, 1e-300, PETSC_DEFAULT, iterations));
  PetscCall(KSPSetFromOptions(solver));
  PetscCall(KSPSetUp(solver));
  PetscCallMPI(MPI_Barrier(PETSC_COMM_WORLD));
  double start = MPI_Wtime();
  PetscCall(KSPSolve(solver, b, x));
  double time = MPI_Wtime() - start;

  PetscInt done;
  PetscReal residual, norm;
  PetscCall(KSPGetIterationNumber(solver, &done));
  PetscCall(KSPGetResidualNorm(solver, &residual));
  PetscCall(VecNorm(b, NORM_2, &norm));
  if (rank == 0) {
    printf("residual %.6e\n", residual / norm);
    result(time / done);
  }
  PetscCall(KSPDestroy(&solver));
  PetscCall(VecDestroy(&x));
  PetscCall(VecDestroy(&b));
  PetscCall(MatDestroy(&matrix));
  PetscCall(PetscFinalize());
  MPI_Finalize();
  return 0;
}
