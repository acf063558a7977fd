/* An address table: header handlers that every task finds by address (Address_init) or by index (Addr_set). */
#include "lapi_test.h"

#define BY_INDEX 17
#define LEN 5000

static unsigned char slots[MOST][2][LEN];
static lapi_cntr_t arrived;

/* Task and way are in the user header; the data goes to their slot. */
static void *store(lapi_handle_t *handle, void *uhdr, uint *uhdr_len, ulong *msg_len, compl_hndlr_t **then,
                   void **user_info) {
    int *where = uhdr;
    (void)handle, (void)user_info;
    if (*uhdr_len != 2 * sizeof(int) || *msg_len > LEN)
        return NULL;
    *then = NULL;
    return slots[where[0]][where[1]];
}

int main(void) {
    void *handlers[MOST], *counters[MOST], *found = NULL;
    static unsigned char data[LEN];
    int where[2], to, way;
    lapi_cntr_t sent;
    alarm(90);
    start();
    set(&arrived, 0), set(&sent, 0);
    OK(LAPI_Address_init(hndl, (void *)store, handlers));
    OK(LAPI_Address_init(hndl, &arrived, counters));
    OK(LAPI_Addr_set(hndl, (void *)store, BY_INDEX));
    OK(LAPI_Addr_get(hndl, &found, BY_INDEX));
    CHECK(found == (void *)store && handlers[me] == (void *)store);
    /* The table of each task is its own: all have set theirs. */
    fence_all();
    fill(data, LEN, me);
    for (to = 0; to < n; to++)
        for (way = 0; way < 2; way++) {
            where[0] = me, where[1] = way;
            OK(LAPI_Amsend(hndl, to, way == 0 ? handlers[to] : (void *)BY_INDEX, where, sizeof where, data, LEN,
                           counters[to], &sent, NULL));
            /* The user header may be changed then. */
            CHECK(wait_for(&sent, 1) == 0);
        }
    CHECK(wait_for(&arrived, 2 * n) == 0);
    for (to = 0; to < n; to++)
        for (way = 0; way < 2; way++)
            CHECK(is_filled(slots[to][way], LEN, to));
    OK(LAPI_Term(hndl));
    if (me == 0)
        printf("table: %d tasks\n", n);
    return 0;
}
