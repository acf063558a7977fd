/*
 * The reference's example of LAPI_Amsend, completed: the completion counter is passed by address, and the handlers have bodies.
 * Every task sends to its right neighbour.
 */
#define _DEFAULT_SOURCE
#include <lapi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATA_LEN 100000
#define NUM_TASKS_MOST 64

static int received[DATA_LEN];
static long sum_received = -1;

static void check(int code, const char *call) {
    char text[LAPI_MAX_ERR_STRING];
    if (code == LAPI_SUCCESS)
        return;
    if (LAPI_Msg_string(code, text) != LAPI_SUCCESS)
        strcpy(text, "no code of LAPI");
    fprintf(stderr, "%s: %d: %s\n", call, code, text);
    exit(1);
}
#define CALL(call) check(call, #call)

/* The completion handler: the data is in place. */
static void done(lapi_handle_t *hndl, void *user_info) {
    const int *data = user_info;
    long sum = 0;
    int i;
    (void)hndl;
    for (i = 0; i < DATA_LEN; i++)
        sum += data[i];
    sum_received = sum;
}

/* The header handler, executed on the target task. */
static void *hdr_hndlr(lapi_handle_t *hndl, void *uhdr, uint *uhdr_len, ulong *msg_len, compl_hndlr_t **cmpl_hndlr,
                       void **user_info) {
    (void)hndl, (void)uhdr;
    if (*uhdr_len != 0 || *msg_len != sizeof received)
        return NULL;
    /* set completion handler pointer and other information */
    *cmpl_hndlr = done;
    *user_info = received;
    /* return base address for LAPI to begin its data copy */
    return received;
}

int main(void) {
    lapi_handle_t hndl;
    lapi_info_t info;
    int task_id, num_tasks, buddy, i;
    void *hdr_hndlr_list[NUM_TASKS_MOST];
    lapi_cntr_t cmpl_cntr;
    static int data_buffer[DATA_LEN];
    long expected = 0;

    alarm(90);
    memset(&info, 0, sizeof info);
    CALL(LAPI_Init(&hndl, &info));
    CALL(LAPI_Qenv(hndl, TASK_ID, &task_id));
    CALL(LAPI_Qenv(hndl, NUM_TASKS, &num_tasks));
    if (num_tasks > NUM_TASKS_MOST)
        return 1;
    buddy = (task_id + 1) % num_tasks;

    /* retrieve header handler addresses */
    CALL(LAPI_Address_init(hndl, (void *)&hdr_hndlr, hdr_hndlr_list));

    for (i = 0; i < DATA_LEN; i++)
        data_buffer[i] = i + task_id;
    CALL(LAPI_Setcntr(hndl, &cmpl_cntr, 0));
    /* synchronize before starting data transfer */
    CALL(LAPI_Gfence(hndl));

    CALL(LAPI_Amsend(hndl, buddy, (void *)hdr_hndlr_list[buddy], NULL, 0, &(data_buffer[0]),
                     DATA_LEN * (sizeof(int)), NULL, NULL, &cmpl_cntr));

    /* Wait on completion counter before continuing: the completion handler has run at the target. */
    CALL(LAPI_Waitcntr(hndl, &cmpl_cntr, 1, NULL));
    /* Every task's message has been handled. */
    CALL(LAPI_Gfence(hndl));
    for (i = 0; i < DATA_LEN; i++)
        expected += i + (task_id + num_tasks - 1) % num_tasks;
    if (sum_received != expected) {
        fprintf(stderr, "task %d: the sum is %ld, not %ld\n", task_id, sum_received, expected);
        return 1;
    }
    CALL(LAPI_Term(hndl));
    if (task_id == 0)
        printf("example: %d tasks\n", num_tasks);
    return 0;
}
