/* Calls beside the GASPI specification that programs for GPI-2 make. GASPI.h says how results, time limits and threads are. */
#ifndef BELLWETHER_GASPI_EXT_H
#define BELLWETHER_GASPI_EXT_H

#include "GASPI.h"

#include <stdarg.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* For every phase: 1 in the working phase, else 0. */
BELLWETHER_GASPI_CALL(initialized, (gaspi_number_t * initialized));

/* This rank among those of its host, and how many there are. */
BELLWETHER_GASPI_CALL(proc_local_rank, (gaspi_rank_t * local_rank));
BELLWETHER_GASPI_CALL(proc_local_num, (gaspi_rank_t * local_num));
/* Whether a rank lives: GASPI_ERROR if it is lost, which makes it GASPI_STATE_CORRUPT. */
BELLWETHER_GASPI_CALL(proc_ping, (const gaspi_rank_t rank, const gaspi_timeout_t timeout_ms));

/* The lowest id without a segment here. */
BELLWETHER_GASPI_CALL(segment_avail_local, (gaspi_segment_id_t * avail_seg_id));
/* The bytes of a segment of any rank. */
BELLWETHER_GASPI_CALL(segment_size, (const gaspi_segment_id_t segment_id, const gaspi_rank_t rank,
                                     gaspi_size_t *size));

/* For every phase. The frequency in MHz; the NUMA node of the processor that runs this thread. */
BELLWETHER_GASPI_CALL(cpu_frequency, (gaspi_float * cpu_mhz));
BELLWETHER_GASPI_CALL(numa_socket, (gaspi_uchar * socket));
/* Binds this thread, and those that it starts from now on, to the processors of a NUMA node. GASPI_ERROR if there is no such node. */
BELLWETHER_GASPI_CALL(set_socket_affinity, (const gaspi_uchar socket));
/* Prints the processors that this thread may use, as a hexadecimal number with a bit for each. */
void gaspi_print_affinity_mask(void);
void pgaspi_print_affinity_mask(void);
/* The name of the processor's kind, such as x86_64, in 16 bytes. */
BELLWETHER_GASPI_CALL(machine_type, (char machine_type[16]));

/* Memory of the host in kB; what this process uses, and the most that it has used, in bytes. 0 if the system does not tell. */
gaspi_size_t gaspi_get_system_mem(void);
gaspi_size_t gaspi_get_mem_in_use(void);
gaspi_size_t gaspi_get_mem_peak(void);

/* The text of a code, which is not to be freed or changed. Also of numbers that are no code. For every phase. */
gaspi_string_t gaspi_error_str(gaspi_return_t error_code);
gaspi_string_t pgaspi_error_str(gaspi_return_t error_code);

/* Prints to standard output, behind the own rank: what `bellwether run` shows. At most 1023 bytes, at once. For every phase. */
#ifdef __GNUC__
__attribute__((format(printf, 1, 2), unused))
#endif
static void gaspi_printf(const char *fmt, ...) {
    char text[1024];
    gaspi_rank_t rank;
    va_list arguments;
    va_start(arguments, fmt);
    (void)vsnprintf(text, sizeof text, fmt, arguments);
    va_end(arguments);
    if (pgaspi_proc_rank(&rank) == GASPI_SUCCESS)
        (void)fprintf(stdout, "[%u] %s", (unsigned)rank, text);
    else
        (void)fprintf(stdout, "[-] %s", text);
    (void)fflush(stdout);
}

/* Prints a text that ends with a zero byte at `rank`, as it is. */
gaspi_return_t bellwether_gaspi_print_to(gaspi_rank_t rank, const char *text);

/* As gaspi_printf, at the standard output of `rank`, which need make no call for it; behind the own rank. Prints here outside of the working
 * phase, and nothing if there is no such rank or it is lost. Waits for nobody: if that rank takes no messages, texts are dropped, which is told at
 * the standard error here; so they are there, and told in the log, while its standard output takes nothing. */
#ifdef __GNUC__
__attribute__((format(printf, 2, 3), unused))
#endif
static void gaspi_printf_to(gaspi_rank_t rank, const char *fmt, ...) {
    char text[1024 + 16];
    gaspi_rank_t own;
    int head;
    va_list arguments;
    if (pgaspi_proc_rank(&own) == GASPI_SUCCESS)
        head = sprintf(text, "[%u] ", (unsigned)own);
    else
        head = sprintf(text, "[-] ");
    va_start(arguments, fmt);
    (void)vsnprintf(text + head, 1024, fmt, arguments);
    va_end(arguments);
    /* What was printed here before comes first. */
    (void)fflush(stdout);
    switch (bellwether_gaspi_print_to(rank, text)) {
    case GASPI_ERR_NOINIT:
        (void)fputs(text, stdout);
        (void)fflush(stdout);
        break;
    case GASPI_QUEUE_FULL:
        (void)fprintf(stderr, "gaspi_printf_to: rank %u takes no messages, a text for it was dropped\n", (unsigned)rank);
        break;
    default:
        break;
    }
}

/* The profiling names. */
#define pgaspi_printf gaspi_printf
#define pgaspi_printf_to gaspi_printf_to

#ifdef __cplusplus
}
#endif

#endif
