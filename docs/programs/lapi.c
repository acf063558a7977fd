#include <lapi.h>
#include <stdio.h>
#include <string.h>

static int inbox, sum;

/* Runs at the target when a message arrives: its data goes to the inbox. */
static void *receive(lapi_handle_t *hndl, void *uhdr, uint *uhdr_len, ulong *msg_len,
                     compl_hndlr_t **then, void **parameter) {
    (void)hndl, (void)uhdr, (void)uhdr_len, (void)msg_len, (void)then, (void)parameter;
    return &inbox;
}

int main(void) {
    lapi_handle_t hndl;
    lapi_info_t info;
    lapi_cntr_t arrived, added;
    void *arrived_at[64], *sum_at[64];
    int me, n, next;

    memset(&info, 0, sizeof info);
    if (LAPI_Init(&hndl, &info) != LAPI_SUCCESS) return 1;
    LAPI_Qenv(hndl, TASK_ID, &me);
    LAPI_Qenv(hndl, NUM_TASKS, &n);
    next = (me + 1) % n;

    LAPI_Setcntr(hndl, &arrived, 0);
    LAPI_Setcntr(hndl, &added, 0);
    LAPI_Addr_set(hndl, (void *)receive, 1);
    /* Collective: every task has registered its handler when it returns. */
    LAPI_Address_init(hndl, &arrived, arrived_at);
    LAPI_Address_init(hndl, &sum, sum_at);

    LAPI_Amsend(hndl, next, (void *)1, NULL, 0, &me, sizeof me, arrived_at[next], NULL, NULL);
    LAPI_Waitcntr(hndl, &arrived, 1, NULL);
    LAPI_Rmw(hndl, FETCH_AND_ADD, 0, sum_at[0], &inbox, NULL, &added);
    LAPI_Waitcntr(hndl, &added, 1, NULL);
    LAPI_Gfence(hndl);
    if (me == 0) printf("sum %d\n", sum);
    LAPI_Term(hndl);
    return 0;
}
