#include <shmem.h>
#include <stdio.h>

static long inbox, arrived, sum;

int main(void) {
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n;
    shmem_long_p(&inbox, me, next);
    shmem_fence();                               /* since 1.5 the three are shmem_putmem_signal */
    shmem_long_atomic_inc(&arrived, next);
    shmem_long_wait_until(&arrived, SHMEM_CMP_GE, 1);
    shmem_long_atomic_add(&sum, inbox, 0);
    shmem_barrier_all();
    if (me == 0) printf("sum %ld\n", sum);
    shmem_finalize();
}
