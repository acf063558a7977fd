
/* LAPI through the C library: the calls of lapi-am, lapi-rate and lapi-bandwidth. */
#include <lapi.h>

enum { LONG = 1 << 20, HANDLER = 1, ANSWERED = 2 };

static lapi_handle_t hndl;
static int me, ranks;
static lapi_cntr_t arrived;
static void **counters;
static char room[LONG + 4096] __attribute__((aligned(4096)));
/* Half a page from the start of one, as in the benchmark of the library itself: how data lies in its pages decides how fast it is copied. */
static char *const payload = room + 2048;
/* Symmetric memory where BELLWETHER_STATIC_DATA says so. */
static char fixed[LONG + 4096] __attribute__((aligned(4096)));
static ulong size;
static volatile char sink;

static void check(int code) {
    char text[LAPI_MAX_ERR_STRING];
    if (code == LAPI_SUCCESS) return;
    if (LAPI_Msg_string(code, text) != LAPI_SUCCESS) snprintf(text, sizeof text, "code %d", code);
    fprintf(stderr, "%s\n", text);
    exit(1);
}

static void *arrive(lapi_handle_t *h, void *uhdr, uint *uhdr_len, ulong *len, compl_hndlr_t **then, void **parameter) {
    const lapi_return_info_t *info = (const void *)len;
    const char *data = info->udata_one_pkt_ptr;
    (void)h, (void)uhdr, (void)uhdr_len, (void)then, (void)parameter;
    sink = data[0] ^ data[info->msg_len - 1];
    return NULL;
}

static void answer(lapi_handle_t *h, void *parameter) {
    (void)parameter;
    check(LAPI_Amsend(*h, 0, (void *)HANDLER, NULL, 0, payload, size, counters[0], NULL, NULL));
}

static void *arrive_answered(lapi_handle_t *h, void *uhdr, uint *uhdr_len, ulong *len, compl_hndlr_t **then,
                             void **parameter) {
    ((lapi_return_info_t *)(void *)len)->ret_flags = LAPI_SEND_REPLY;
    *then = answer;
    return arrive(h, uhdr, uhdr_len, len, then, parameter);
}

static void send_to(uint to, long handler) {
    check(LAPI_Amsend(hndl, to, (void *)handler, NULL, 0, payload, size, counters[to], NULL, NULL));
}

static void wait_for(int count) {
    check(LAPI_Waitcntr(hndl, &arrived, count, NULL));
}

static double batch(const char *bench, long n, char *place) {
    check(LAPI_Gfence(hndl));
    double begin = now_ns();
    if (!strcmp(bench, "lapi-am")) {
        if (me == 0)
            for (long i = 0; i < n; i++) send_to(1, ANSWERED), wait_for(1);
        if (me == 1) wait_for(n);
        return (now_ns() - begin) / n / 2;
    }
    if (!strcmp(bench, "lapi-rate")) {
        if (me == 0) {
            for (long i = 0; i < n; i++) send_to(1, HANDLER);
            wait_for(1);
        }
        if (me == 1) wait_for(n), send_to(0, HANDLER);
    } else {
        if (me == 0)
            for (long i = 0; i < n; i++) check(LAPI_Put(hndl, 1, size, place, payload, NULL, NULL, NULL));
        check(LAPI_Fence(hndl));
    }
    return (now_ns() - begin) / n;
}

int main(int argc, char **argv) {
    lapi_info_t info;
    memset(&info, 0, sizeof info);
    check(LAPI_Init(&hndl, &info));
    check(LAPI_Qenv(hndl, TASK_ID, &me));
    check(LAPI_Qenv(hndl, NUM_TASKS, &ranks));
    check(LAPI_Senv(hndl, INTERRUPT_SET, 0));
    void **places = calloc(ranks, sizeof *places);
    counters = calloc(ranks, sizeof *counters);
    check(LAPI_Setcntr(hndl, &arrived, 0));
    check(LAPI_Addr_set(hndl, (void *)arrive, HANDLER));
    check(LAPI_Addr_set(hndl, (void *)arrive_answered, ANSWERED));
    check(LAPI_Address_init(hndl, &arrived, counters));
    check(LAPI_Address_init(hndl, fixed, places));
    const char *bench = argv[1];
    int batches = atoi(argv[2]);
    long shorten = atol(argv[3]);
    for (int a = 4; a < argc; a++) {
        size = strtoul(argv[a], NULL, 10);
        if (size < 1 || size > LONG) continue;
        memset(payload, 7, size);
        long n = !strcmp(bench, "lapi-am")     ? operations(2000, 8l << 20, size, shorten)
                 : !strcmp(bench, "lapi-rate") ? operations(50000, 16l << 20, size, shorten)
                                               : operations(2000, 4l << 20, size, shorten);
        for (int b = -2; b < batches; b++) {
            double ns = batch(bench, n, places[ranks > 1]);
            if (b >= 0 && me == 0) report(size, ns);
        }
    }
    check(LAPI_Gfence(hndl));
    check(LAPI_Term(hndl));
    return 0;
}
