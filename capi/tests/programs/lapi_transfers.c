/* The rows of LAPI's table about put, get, atomic operations, vectors, Xfer, and the rarer waits. Each task works on the next one. */
#include "lapi_test.h"

#define LEN 40000

static unsigned char here[LEN], there[LEN];
static unsigned char *there_next;
static lapi_cntr_t target, origin, completion, *target_next;

static void clean(void) {
    fence_all();
    memset(there, 0, LEN);
    memset(here, 0, LEN);
    CHECK(value_of(&target) == 0 && value_of(&origin) == 0 && value_of(&completion) == 0);
    fence_all();
}

/* Waits until each counter has moved by `events`, and no more. */
static void all_moved(int events) {
    CHECK(wait_for(&completion, events) == 0);
    CHECK(wait_for(&origin, events) == 0);
    CHECK(wait_for(&target, events) == 0);
}

static void put_and_get(void) {
    static const unsigned long lengths[] = {0, 1, 8, 500, 8192, 8193, LEN};
    unsigned i;
    /* L38, L40: at every length; of nothing the addresses may be null. */
    for (i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        unsigned long len = lengths[i];
        clean();
        fill(here, len, me);
        OK(LAPI_Put(hndl, next, len, len ? there_next : NULL, len ? here : NULL, target_next, &origin, &completion));
        all_moved(1);
        CHECK(is_filled(there, len, before) && (len == LEN || there[len] == 0));
        /* L39 */
        clean();
        fill(there, len, me + 50);
        fence_all();
        OK(LAPI_Get(hndl, next, len, len ? there_next : NULL, len ? here : NULL, target_next, &origin));
        CHECK(wait_for(&origin, 1) == 0);
        CHECK(is_filled(here, len, next + 50));
        CHECK(wait_for(&target, 1) == 0);
    }
    clean();
}

static int number;
static long long wide;

static void atomics(void) {
    int *numbers = at(0, &number), one = 1, old = -1, pair[2], i;
    long long *wides = at(0, &wide), big = 1LL << 40, wide_old = -1, wide_pair[2];
    /* L42, L45: none is lost, those of the own task neither. */
    number = 0, wide = 5;
    fence_all();
    for (i = 0; i < 3000; i++) {
        OK(LAPI_Rmw(hndl, FETCH_AND_ADD, 0, numbers, &one, NULL, &origin));
        OK(LAPI_Rmw64(hndl, FETCH_AND_ADD, 0, wides, &big, NULL, &origin));
    }
    CHECK(wait_for(&origin, 6000) == 0);
    fence_all();
    CHECK(me != 0 || (number == 3000 * n && wide == 5 + ((3000LL * n) << 40)));
    /* L43, L44: what comes back, on the own number. */
    number = 6, wide = 6;
    OK(LAPI_Rmw(hndl, FETCH_AND_ADD, me, &number, &one, &old, &origin));
    CHECK(wait_for(&origin, 1) == 0 && old == 6 && number == 7);
    one = 8;
    OK(LAPI_Rmw(hndl, FETCH_AND_OR, me, &number, &one, &old, &origin));
    CHECK(wait_for(&origin, 1) == 0 && old == 7 && number == 15);
    OK(LAPI_Rmw(hndl, SWAP, me, &number, &one, &old, &origin));
    CHECK(wait_for(&origin, 1) == 0 && old == 15 && number == 8);
    pair[0] = 8, pair[1] = 100;
    OK(LAPI_Rmw(hndl, COMPARE_AND_SWAP, me, &number, pair, &old, &origin));
    CHECK(wait_for(&origin, 1) == 0 && old == 1 && number == 100);
    OK(LAPI_Rmw(hndl, COMPARE_AND_SWAP, me, &number, pair, &old, &origin));
    CHECK(wait_for(&origin, 1) == 0 && old == 0 && number == 100);
    wide_pair[0] = 6, wide_pair[1] = -(1LL << 50);
    OK(LAPI_Rmw64(hndl, COMPARE_AND_SWAP, me, &wide, wide_pair, &wide_old, &origin));
    CHECK(wait_for(&origin, 1) == 0 && wide_old == 1 && wide == -(1LL << 50));
    OK(LAPI_Rmw64(hndl, SWAP, me, &wide, &big, &wide_old, &origin));
    CHECK(wait_for(&origin, 1) == 0 && wide_old == -(1LL << 50) && wide == 1LL << 40);
    fence_all();
}

static lapi_vec_t vector(lapi_vectype_t type, uint places, void **info, ulong *len) {
    lapi_vec_t made;
    made.vec_type = type, made.num_vecs = places, made.info = info, made.len = len;
    return made;
}

static lapi_vec_t answer;
static void *answer_info[4];
static ulong answer_len[4], seen_len[4];
static int handled;

static void complete(lapi_handle_t *handle, void *user_info) {
    (void)handle, (void)user_info;
    __atomic_fetch_add(&handled, 1, __ATOMIC_RELEASE);
}

static lapi_vec_t *take_vector(lapi_handle_t *handle, void *uhdr, uint *uhdr_len, ulong *len_vec, compl_hndlr_t **then,
                               void **user_info) {
    (void)handle, (void)user_info;
    memcpy(seen_len, len_vec, answer.num_vecs * sizeof *len_vec);
    *then = complete;
    return *uhdr_len == 4 && *(int *)uhdr == 0 ? NULL : &answer;
}

static void vectors(void) {
    void *org_info[3], *tgt_info[3];
    ulong org_len[3], tgt_len[3];
    lapi_vec_t org, tgt;
    int i, j, word;
    /* L46: 16 blocks of 8 bytes, 32 bytes apart, go to blocks 40 apart. */
    clean();
    fill(here, LEN, me);
    org_info[0] = here, org_info[1] = (void *)8, org_info[2] = (void *)32;
    tgt_info[0] = there_next, tgt_info[1] = (void *)8, tgt_info[2] = (void *)40;
    org = vector(LAPI_GEN_STRIDED_XFER, 16, org_info, NULL);
    tgt = vector(LAPI_GEN_STRIDED_XFER, 16, tgt_info, NULL);
    OK(LAPI_Putv(hndl, next, &tgt, &org, target_next, &origin, &completion));
    all_moved(1);
    for (i = 0; i < 16; i++)
        for (j = 0; j < 40; j++) {
            unsigned char expected[8 + 16 * 32];
            fill(expected, sizeof expected, before);
            CHECK(there[40 * i + j] == (j < 8 ? expected[32 * i + j] : 0));
        }
    /* Lists of equal lengths, back again. */
    clean();
    fill(there, LEN, me + 3);
    fence_all();
    org_info[0] = here, org_info[1] = here + 20000, org_info[2] = here + 10;
    tgt_info[0] = there_next, tgt_info[1] = there_next + 10, tgt_info[2] = there_next + 15010;
    org_len[0] = tgt_len[0] = 10, org_len[1] = tgt_len[1] = 15000, org_len[2] = tgt_len[2] = 7;
    org = vector(LAPI_GEN_IOVECTOR, 3, org_info, org_len);
    tgt = vector(LAPI_GEN_IOVECTOR, 3, tgt_info, tgt_len);
    OK(LAPI_Getv(hndl, next, &tgt, &org, target_next, &origin));
    CHECK(wait_for(&origin, 1) == 0);
    memmove(here + 17, here + 10, 7);
    memmove(here + 10, here + 20000, 15000);
    CHECK(is_filled(here, 15010, next + 3));
    CHECK(wait_for(&target, 1) == 0);
    /* Lists in other pieces. */
    clean();
    fill(here, 30, me);
    tgt_info[0] = there_next, tgt_info[1] = there_next + 25;
    org_info[0] = here, org_info[1] = here + 10, org_info[2] = here + 20;
    org_len[0] = org_len[1] = org_len[2] = 10, tgt_len[0] = 25, tgt_len[1] = 5;
    org = vector(LAPI_GEN_GENERIC, 3, org_info, org_len);
    tgt = vector(LAPI_GEN_GENERIC, 2, tgt_info, tgt_len);
    OK(LAPI_Putv(hndl, next, &tgt, &org, target_next, &origin, &completion));
    all_moved(1);
    CHECK(is_filled(there, 30, before));

    /* A message: the target names the places, or none. */
    for (i = 0; i < 3; i++) {
        ulong unit = i == 2 ? 9000 : 12;
        clean();
        handled = 0;
        fill(here, 3 * unit, me + i);
        for (j = 0; j < 3; j++) {
            org_info[j] = here + (ulong)j * unit, org_len[j] = answer_len[j] = unit;
            answer_info[j] = there + (ulong)(2 - j) * unit;
        }
        answer = vector(LAPI_GEN_IOVECTOR, 3, answer_info, answer_len);
        org = vector(LAPI_GEN_IOVECTOR, 3, org_info, org_len);
        fence_all();
        word = i;
        OK(LAPI_Amsendv(hndl, next, (void *)3, &word, sizeof word, &org, target_next, &origin, &completion));
        all_moved(1);
        fence_all();
        CHECK(handled == 1 && seen_len[0] == unit && seen_len[1] == unit && seen_len[2] == unit);
        fill(here, 3 * unit, before + i);
        for (j = 0; j < 3; j++)
            if (i == 0)
                CHECK(there[(ulong)j * unit] == 0);
            else
                CHECK(memcmp(there + (ulong)(2 - j) * unit, here + (ulong)j * unit, unit) == 0);
        fence_all();
    }
    memset(here, 0, LEN);
    clean();
}

static int sends, send_target, lightweights;
static char light[200];

static void sent(lapi_handle_t *handle, void *sinfo, lapi_sh_info_t *info) {
    CHECK(*handle == hndl && info->reason == LAPI_SUCCESS);
    send_target = (int)info->src;
    GIVES(LAPI_ERR_IN_HANDLER, LAPI_Probe(*handle));
    __atomic_fetch_add((int *)sinfo, 1, __ATOMIC_RELEASE);
}

static void *store(lapi_handle_t *handle, void *uhdr, uint *uhdr_len, ulong *msg_len, compl_hndlr_t **then,
                   void **user_info) {
    (void)handle, (void)uhdr, (void)uhdr_len, (void)msg_len, (void)user_info;
    *then = complete;
    return there;
}

static void *take_light(lapi_handle_t *handle, void *uhdr, uint *uhdr_len, ulong *msg_len, compl_hndlr_t **then,
                        void **user_info) {
    lapi_return_info_t *info = (lapi_return_info_t *)msg_len;
    (void)handle, (void)then, (void)user_info;
    memcpy(light, uhdr, *uhdr_len);
    if (info->udata_one_pkt_ptr != NULL)
        memcpy(light + *uhdr_len, info->udata_one_pkt_ptr, *msg_len);
    __atomic_fetch_add(&lightweights, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void until(int *count, int value) {
    while (__atomic_load_n(count, __ATOMIC_ACQUIRE) < value)
        OK(LAPI_Probe(hndl));
    CHECK(*count == value);
}

static void xfers(void) {
    lapi_xfer_t what;
    void *org_info[1], *tgt_info[1];
    ulong len = 300;
    lapi_vec_t org, tgt;
    int one = 1, old = -1, i;
    /* L47, L29: each transfer, with a function in the place of the origin counter. */
    clean();
    fill(here, LEN, me);
    sends = 0;
    memset(&what, 0, sizeof what);
    what.Put.Xfer_type = LAPI_PUT_XFER, what.Put.tgt = (uint)next, what.Put.tgt_addr = (lapi_long_t)there_next;
    what.Put.org_addr = here, what.Put.len = LEN, what.Put.shdlr = sent, what.Put.sinfo = &sends;
    what.Put.tgt_cntr = (lapi_long_t)target_next, what.Put.cmpl_cntr = &completion;
    OK(LAPI_Xfer(hndl, &what));
    until(&sends, 1);
    CHECK(send_target == next && wait_for(&completion, 1) == 0 && wait_for(&target, 1) == 0);
    CHECK(is_filled(there, LEN, before));
    /* With a counter. */
    fence_all();
    what.Put.shdlr = NULL, what.Put.org_cntr = &origin;
    OK(LAPI_Xfer(hndl, &what));
    all_moved(1);
    CHECK(sends == 1);

    clean();
    handled = 0;
    fill(there, LEN, me + 9);
    fence_all();
    memset(&what, 0, sizeof what);
    what.Get.Xfer_type = LAPI_GET_XFER, what.Get.tgt = (uint)next, what.Get.tgt_addr = (lapi_long_t)there_next;
    what.Get.org_addr = here, what.Get.len = LEN, what.Get.chndlr = complete;
    what.Get.tgt_cntr = (lapi_long_t)target_next;
    OK(LAPI_Xfer(hndl, &what));
    until(&handled, 1);
    CHECK(is_filled(here, LEN, next + 9) && wait_for(&target, 1) == 0);

    for (i = 0; i < 2; i++) {
        ulong size = i ? LEN : 100;
        clean();
        handled = sends = 0;
        fill(here, size, me);
        fence_all();
        memset(&what, 0, sizeof what);
        what.Am.Xfer_type = LAPI_AM_XFER, what.Am.tgt = (uint)next, what.Am.hdr_hdl = 4;
        what.Am.udata = here, what.Am.udata_len = size, what.Am.shdlr = sent, what.Am.sinfo = &sends;
        what.Am.tgt_cntr = (lapi_long_t)target_next, what.Am.cmpl_cntr = &completion;
        OK(LAPI_Xfer(hndl, &what));
        until(&sends, 1);
        /* The source is reusable. */
        memset(here, 0, size);
        CHECK(wait_for(&completion, 1) == 0 && wait_for(&target, 1) == 0);
        fence_all();
        CHECK(sends == 1 && handled == 1 && is_filled(there, size, before));
    }

    number = 40;
    sends = 0;
    fence_all();
    memset(&what, 0, sizeof what);
    what.Rmw.Xfer_type = LAPI_RMW_XFER, what.Rmw.op = FETCH_AND_ADD, what.Rmw.tgt = (uint)me, what.Rmw.size = 32;
    what.Rmw.tgt_var = (lapi_long_t)&number, what.Rmw.in_val = &one, what.Rmw.prev_tgt_val = &old;
    what.Rmw.shdlr = sent, what.Rmw.sinfo = &sends;
    OK(LAPI_Xfer(hndl, &what));
    until(&sends, 1);
    CHECK(old == 40 && number == 41);

    clean();
    fill(here, len, me);
    org_info[0] = here, tgt_info[0] = there_next;
    org = vector(LAPI_GEN_IOVECTOR, 1, org_info, &len);
    tgt = vector(LAPI_GEN_IOVECTOR, 1, tgt_info, &len);
    memset(&what, 0, sizeof what);
    what.Putv.Xfer_type = LAPI_PUTV_XFER, what.Putv.tgt = (uint)next, what.Putv.org_vec = &org, what.Putv.tgt_vec = &tgt;
    what.Putv.tgt_cntr = (lapi_long_t)target_next, what.Putv.org_cntr = &origin, what.Putv.cmpl_cntr = &completion;
    OK(LAPI_Xfer(hndl, &what));
    all_moved(1);
    CHECK(is_filled(there, len, before));
    clean();
    fill(there, len, me + 1);
    fence_all();
    memset(&what, 0, sizeof what);
    what.Getv.Xfer_type = LAPI_GETV_XFER, what.Getv.tgt = (uint)next, what.Getv.org_vec = &org, what.Getv.tgt_vec = &tgt;
    what.Getv.org_cntr = &origin;
    OK(LAPI_Xfer(hndl, &what));
    CHECK(wait_for(&origin, 1) == 0 && is_filled(here, len, next + 1));
    clean();
    handled = 0;
    answer_info[0] = there, answer_len[0] = len;
    answer = vector(LAPI_GEN_IOVECTOR, 1, answer_info, answer_len);
    fill(here, len, me);
    fence_all();
    memset(&what, 0, sizeof what);
    what.Amv.Xfer_type = LAPI_AMV_XFER, what.Amv.tgt = (uint)next, what.Amv.hdr_hdl = 3, what.Amv.uhdr = &one;
    what.Amv.uhdr_len = sizeof one, what.Amv.org_vec = &org, what.Amv.tgt_cntr = (lapi_long_t)target_next;
    what.Amv.org_cntr = &origin, what.Amv.cmpl_cntr = &completion;
    OK(LAPI_Xfer(hndl, &what));
    all_moved(1);
    CHECK(is_filled(there, len, before));
    fence_all();

    /* L48: lightweight messages. */
    lightweights = 0;
    fence_all();
    memset(&what, 0, sizeof what);
    what.Am.Xfer_type = LAPI_AM_LW_XFER, what.Am.tgt = (uint)next, what.Am.hdr_hdl = 5;
    what.Am.uhdr = here, what.Am.uhdr_len = 28, what.Am.udata = here + 28, what.Am.udata_len = 100;
    fill(here, 128, me);
    OK(LAPI_Xfer(hndl, &what));
    memset(here, 0, 128);
    fence_all();
    CHECK(lightweights == 1 && is_filled((unsigned char *)light, 128, before));
    what.Am.udata_len = 101;
    GIVES(LAPI_ERR_LW_DATA_LEN, LAPI_Xfer(hndl, &what));
    fence_all();
    CHECK(lightweights == 1);
}

static lapi_cntr_t shared;
static int refused, woken;

/* Of two threads that wait, the second one is refused, and wakes the first. */
static void *wait_alone(void *argument) {
    int code = LAPI_Nopoll_wait(hndl, &shared, 1, NULL);
    (void)argument;
    if (code == LAPI_SUCCESS) {
        __atomic_fetch_add(&woken, 1, __ATOMIC_RELAXED);
        return NULL;
    }
    GIVES(LAPI_ERR_MULTIPLE_WAITERS, code);
    __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
    OK(LAPI_Put(hndl, me, 0, NULL, NULL, &shared, NULL, NULL));
    return NULL;
}

static void waits(void) {
    uint tasks[2];
    int states[2], left = -1, tries, found = 0;
    lapi_cntr_t counter, *target_first = at(0, &target), *target_last = at(n - 1, &target);
    lapi_msg_info_t info;
    pthread_t thread;
    /* L37: which tasks have received. */
    tasks[0] = (uint)next, tasks[1] = (uint)n + 7;
    set(&counter, 9);
    OK(LAPI_Setcntr_wstatus(hndl, &counter, 2, tasks, states));
    CHECK(value_of(&counter) == 0 && states[0] == LAPI_MSG_INITIAL && states[1] == LAPI_MSG_INVALID);
    OK(LAPI_Put(hndl, next, 0, NULL, NULL, NULL, NULL, &counter));
    OK(LAPI_Nopoll_wait(hndl, &counter, 1, &left));
    CHECK(left == 0 && states[0] == LAPI_MSG_RECVD && states[1] == LAPI_MSG_INVALID);
    GIVES(LAPI_ERR_CNTR_VAL, LAPI_Nopoll_wait(hndl, &counter, 0, &left));
    GIVES(LAPI_ERR_CNTR_VAL, LAPI_Nopoll_wait(hndl, &counter, -1, &left));
    GIVES(LAPI_ERR_CNTR_NULL, LAPI_Nopoll_wait(hndl, NULL, 1, &left));
    GIVES(LAPI_ERR_CNTR_NULL, LAPI_Setcntr_wstatus(hndl, NULL, 2, tasks, states));
    GIVES(LAPI_ERR_RET_PTR_NULL, LAPI_Setcntr_wstatus(hndl, &counter, 2, tasks, NULL));
    CHECK(left == 0 && value_of(&counter) == 0);
    /* One waiter at a time. */
    set(&shared, 0);
    refused = woken = 0;
    CHECK(pthread_create(&thread, NULL, wait_alone, NULL) == 0);
    wait_alone(NULL);
    CHECK(pthread_join(thread, NULL) == 0 && refused == 1 && woken == 1);
    fence_all();

    /* L61: a poll that returns when something is done. */
    OK(LAPI_Senv(hndl, INTERRUPT_SET, 0));
    GIVES(LAPI_ERR_MSG_INFO_NULL, LAPI_Msgpoll(hndl, 1, NULL));
    fence_all();
    if (me == n - 1 && n > 1)
        wait_for(&target, 1);
    /* The last task's comes to the first while that one polls. */
    if (me == n - 1 || me == 0)
        OK(LAPI_Put(hndl, me == 0 ? n - 1 : 0, 0, NULL, NULL, me == 0 ? target_last : target_first, NULL, &completion));
    for (tries = 0; tries < 1000 && me == 0 && found != LAPI_BOTH_COMPLETE; tries++) {
        OK(LAPI_Msgpoll(hndl, 100000, &info));
        found |= (int)info.status & LAPI_BOTH_COMPLETE;
    }
    CHECK(me != 0 || found == LAPI_BOTH_COMPLETE);
    if (me == n - 1 || me == 0)
        CHECK(wait_for(&completion, 1) == 0);
    if (me == 0)
        CHECK(wait_for(&target, 1) == 0);
    fence_all();
    OK(LAPI_Msgpoll(hndl, 3, &info));
    CHECK(info.status == LAPI_DISP_CNTR);
    OK(LAPI_Senv(hndl, INTERRUPT_SET, 1));
    fence_all();
}

int main(void) {
    alarm(100);
    start();
    OK(LAPI_Addr_set(hndl, (void *)take_vector, 3));
    OK(LAPI_Addr_set(hndl, (void *)store, 4));
    OK(LAPI_Addr_set(hndl, (void *)take_light, 5));
    set(&target, 0), set(&origin, 0), set(&completion, 0);
    target_next = at(next, &target);
    there_next = at(next, there);
    put_and_get();
    atomics();
    vectors();
    xfers();
    waits();
    OK(LAPI_Term(hndl));
    if (me == 0)
        printf("transfers: %d tasks\n", n);
    return 0;
}
