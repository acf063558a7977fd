/*
 * A completion handler that gets from the origin of its message and waits: the message says where its data is. The main thread of the
 * target is in a wait of its own, or computes.
 */
#include "lapi_test.h"

#define LEN 300000

struct parcel {
    unsigned char *address;
    ulong len;
    int from;
    lapi_cntr_t *handled;
};

static unsigned char data[LEN], fetched[LEN];
static int is_right;

static void unpack(lapi_handle_t *handle, void *user_info) {
    struct parcel *parcel = user_info;
    lapi_cntr_t got;
    int left = -1;
    OK(LAPI_Setcntr(*handle, &got, 0));
    OK(LAPI_Get(*handle, parcel->from, parcel->len, parcel->address, fetched, NULL, &got));
    OK(LAPI_Waitcntr(*handle, &got, 1, &left));
    is_right = left == 0 && is_filled(fetched, parcel->len, parcel->from);
    /* A message of its own. */
    OK(LAPI_Put(*handle, parcel->from, 0, NULL, NULL, parcel->handled, NULL, NULL));
    free(parcel);
}

static void *announce(lapi_handle_t *handle, void *uhdr, uint *uhdr_len, ulong *msg_len, compl_hndlr_t **then,
                      void **user_info) {
    (void)handle, (void)msg_len;
    /* A queued handler does not have the user header. */
    *user_info = malloc(*uhdr_len);
    memcpy(*user_info, uhdr, *uhdr_len);
    *then = unpack;
    return NULL;
}

int main(void) {
    struct parcel parcel;
    lapi_cntr_t handled, done;
    int way;
    alarm(90);
    start();
    OK(LAPI_Addr_set(hndl, (void *)announce, 1));
    set(&handled, 0), set(&done, 0);
    /* Interrupt mode with the main thread asleep; then in LAPI_Waitcntr; then polling mode. */
    for (way = 0; way < 3; way++) {
        OK(LAPI_Senv(hndl, INTERRUPT_SET, way != 2));
        is_right = 0;
        memset(fetched, 0, LEN);
        fill(data, LEN, me);
        fence_all();
        memset(&parcel, 0, sizeof parcel);
        parcel.address = data, parcel.len = LEN, parcel.from = me, parcel.handled = &handled;
        OK(LAPI_Amsend(hndl, next, (void *)1, &parcel, sizeof parcel, NULL, 0, NULL, NULL, &done));
        if (way == 0)
            while (__atomic_load_n(&handled.cntr, __ATOMIC_ACQUIRE) == 0 || __atomic_load_n(&done.cntr, __ATOMIC_ACQUIRE) == 0)
                pause_ms(1);
        CHECK(wait_for(&handled, 1) == 0 && wait_for(&done, 1) == 0);
        /* The handler of each task has run. */
        fence_all();
        CHECK(is_right);
    }
    OK(LAPI_Term(hndl));
    if (me == 0)
        printf("fetch: %d tasks\n", n);
    return 0;
}
