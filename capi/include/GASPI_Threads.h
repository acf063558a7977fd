/*
 * Threads of a process with identifiers from 0 and a barrier, as programs for GPI-2 use them. Threads are not bound to cores. For every
 * phase.
 */
#ifndef BELLWETHER_GASPI_THREADS_H
#define BELLWETHER_GASPI_THREADS_H

#include "GASPI.h"

#ifdef __cplusplus
extern "C" {
#endif

/* This thread's identifier; GASPI_ERROR for one that has not called gaspi_threads_register. */
gaspi_return_t gaspi_threads_get_tid(gaspi_int *tid);
/* How many threads take part; 0 before gaspi_threads_init. */
gaspi_return_t gaspi_threads_get_total(gaspi_int *num);
/* How many processors this process may use. */
gaspi_return_t gaspi_threads_get_num_cores(gaspi_int *cores);
/* As many threads as processors; `num` is how many. GASPI_ERROR if a pool is there. */
gaspi_return_t gaspi_threads_init(gaspi_int *num);
/* This number of threads, the calling one included. */
gaspi_return_t gaspi_threads_init_user(const unsigned int use_nr_of_threads);
/* Waits for the threads that gaspi_threads_run has started. */
gaspi_return_t gaspi_threads_term(void);
/* Starts a thread, which calls gaspi_threads_register to take part. */
gaspi_return_t gaspi_threads_run(void *(*function)(void *), void *arg);
/* Takes part. GASPI_ERROR if as many do as gaspi_threads_init has said. */
gaspi_return_t gaspi_threads_register(gaspi_int *tid);
/* Waits until all threads that take part are here. */
void gaspi_threads_sync(void);
/* As gaspi_threads_sync, and a gaspi_barrier of the group, whose code thread 0 gets. */
gaspi_return_t gaspi_threads_sync_all(const gaspi_group_t group, const gaspi_timeout_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
