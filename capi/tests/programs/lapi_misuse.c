/*
 * Every code of lapi.h that a call can provoke: nothing is sent, and no counter moves.
 * Usage: lapi_misuse [unset | lost | start | place | memory]
 */
#include "lapi_test.h"

#include <sys/resource.h>
#include <sys/wait.h>

static lapi_cntr_t counter, other, third;
static int calls, number = 7, operands[2] = {7, 9}, result = 5;
static long long wide = 7, wide_operands[2] = {7, 9}, wide_result = 5;
static char bytes[64] = "unchanged";

static void *note(lapi_handle_t *handle, void *uhdr, uint *uhdr_len, ulong *msg_len, compl_hndlr_t **then,
                  void **user_info) {
    (void)handle, (void)uhdr, (void)uhdr_len, (void)msg_len, (void)then, (void)user_info;
    __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    return NULL;
}

/* Nothing has happened. */
static void nothing(int line) {
    if (counter.cntr != 3 || other.cntr != 3 || third.cntr != 3 || __atomic_load_n(&calls, __ATOMIC_RELAXED) != 0 ||
        number != 7 || operands[0] != 7 || result != 5 || wide != 7 || wide_result != 5 ||
        strcmp(bytes, "unchanged") != 0)
        failed(line, "something was sent or moved", 0);
}

/* A call that returns this code, and does nothing. */
#define REFUSED(code, call)                                                                                      \
    do {                                                                                                         \
        GIVES(code, call);                                                                                       \
        nothing(__LINE__);                                                                                       \
    } while (0)

/* Every call with a handle, made rightly but for the handle. */
static void all_are(int code, lapi_handle_t handle) {
    int value = 9;
    void *table[MOST] = {&value}, *address = &value;
    lapi_long_t values[MOST] = {9};
    void *places[1] = {bytes};
    ulong lengths[1] = {8};
    lapi_vec_t vector = {LAPI_GEN_IOVECTOR, 1, NULL, NULL};
    lapi_xfer_t what;
    lapi_msg_info_t info;
    uint task = 0;
    info.status = 77;
    vector.info = places, vector.len = lengths;
    memset(&what, 0, sizeof what);
    what.Put.Xfer_type = LAPI_PUT_XFER, what.Put.tgt_addr = (lapi_long_t)(bytes + 16), what.Put.org_addr = bytes;
    what.Put.len = 8, what.Put.org_cntr = &counter;
    REFUSED(code, LAPI_Term(handle));
    REFUSED(code, LAPI_Qenv(handle, TASK_ID, &value));
    REFUSED(code, LAPI_Senv(handle, ERROR_CHK, 1));
    REFUSED(code, LAPI_Address_init(handle, &value, table));
    REFUSED(code, LAPI_Address_init64(handle, 1, values));
    REFUSED(code, LAPI_Addr_set(handle, (void *)note, 1));
    REFUSED(code, LAPI_Addr_get(handle, &address, 1));
    REFUSED(code, LAPI_Amsend(handle, 0, (void *)note, bytes, 8, bytes, 8, &counter, &other, &third));
    REFUSED(code, LAPI_Put(handle, 0, 8, bytes + 16, bytes, &counter, &other, &third));
    REFUSED(code, LAPI_Get(handle, 0, 8, bytes, bytes + 16, &counter, &other));
    REFUSED(code, LAPI_Rmw(handle, FETCH_AND_ADD, 0, &number, operands, &result, &counter));
    REFUSED(code, LAPI_Rmw64(handle, SWAP, 0, &wide, wide_operands, &wide_result, &counter));
    REFUSED(code, LAPI_Setcntr(handle, &counter, 1));
    REFUSED(code, LAPI_Getcntr(handle, &counter, &value));
    REFUSED(code, LAPI_Waitcntr(handle, &counter, 1, &value));
    REFUSED(code, LAPI_Probe(handle));
    REFUSED(code, LAPI_Fence(handle));
    REFUSED(code, LAPI_Gfence(handle));
    REFUSED(code, LAPI_Purge_totask(handle, 0));
    REFUSED(code, LAPI_Resume_totask(handle, 0));
    REFUSED(code, LAPI_Amsendv(handle, 0, (void *)note, bytes, 8, &vector, &counter, &other, &third));
    REFUSED(code, LAPI_Putv(handle, 0, &vector, &vector, &counter, &other, &third));
    REFUSED(code, LAPI_Getv(handle, 0, &vector, &vector, &counter, &other));
    REFUSED(code, LAPI_Xfer(handle, &what));
    REFUSED(code, LAPI_Setcntr_wstatus(handle, &counter, 1, &task, &value));
    REFUSED(code, LAPI_Nopoll_wait(handle, &counter, 1, &value));
    REFUSED(code, LAPI_Msgpoll(handle, 1, &info));
    CHECK(info.status == 77);
    /* The profiling names are the same calls. */
    REFUSED(code, PLAPI_Put(handle, 0, 8, bytes + 16, bytes, &counter, &other, &third));
    REFUSED(code, PLAPI_Probe(handle));
    CHECK(value == 9 && table[0] == &value && address == &value && values[0] == 9);
}

/* Handles that were never made. */
static void no_handles(void) {
    static const lapi_handle_t never[] = {0, 1, 63, 64, 12345, UINT_MAX};
    unsigned i;
    for (i = 0; i < sizeof never / sizeof *never; i++)
        if (never[i] != hndl || me < 0)
            all_are(LAPI_ERR_HNDL_INVALID, never[i]);
}

static void *elsewhere(void *argument) {
    (void)argument;
    no_handles();
    return NULL;
}

static void in_another_thread(void *(*run)(void *)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void information(void) {
    lapi_handle_t handle = 99;
    lapi_info_t info;
    int pointer;
    GIVES(LAPI_ERR_INFO_NULL, LAPI_Init(&handle, NULL));
    GIVES(LAPI_ERR_INFO_NULL, LAPI_Init(NULL, NULL));
    for (pointer = 0; pointer < 6; pointer++) {
        memset(&info, 0, sizeof info);
        if (pointer == 0) info.protocol = 1;
        if (pointer == 1) info.info6 = 1;
        if (pointer == 2) info.lapi_thread_attr = &info;
        if (pointer == 3) info.adapter_name = &info;
        if (pointer == 4) info.add_info = &info;
        if (pointer == 5) info.lib_vers = LAST_LIB;
        GIVES(LAPI_ERR_INFO_NONZERO, LAPI_Init(&handle, &info));
    }
    memset(&info, 0, sizeof info);
    GIVES(LAPI_ERR_RET_PTR_NULL, LAPI_Init(NULL, &info));
    CHECK(handle == 99);
}

static void texts(void) {
    char text[LAPI_MAX_ERR_STRING + 1];
    ulong address = 5;
    int code, known = 0;
    for (code = -5; code < 1000; code++) {
        memset(text, 'x', sizeof text);
        if (LAPI_Msg_string(code, text) == LAPI_SUCCESS) {
            known++;
            CHECK(memchr(text, 0, LAPI_MAX_ERR_STRING) != NULL && strlen(text) > 10);
        } else {
            GIVES(LAPI_ERR_CODE_UNKNOWN, LAPI_Msg_string(code, text));
            CHECK(text[0] == 'x');
        }
        CHECK(text[LAPI_MAX_ERR_STRING] == 'x');
    }
    CHECK(known > 50);
    GIVES(LAPI_ERR_RET_PTR_NULL, LAPI_Msg_string(LAPI_ERR_TGT, NULL));
    GIVES(LAPI_ERR_CODE_UNKNOWN, LAPI_Msg_string(1, NULL));
    GIVES(LAPI_ERR_ORG_ADDR_NULL, LAPI_Address(NULL, &address));
    GIVES(LAPI_ERR_TGT_ADDR_NULL, LAPI_Address(text, NULL));
    CHECK(address == 5);
    OK(LAPI_Address(text, &address));
    CHECK(address == (ulong)text);
}

/* What is no index, and no address where a task can have a function: nothing is sent, and nobody jumps there. */
static void no_function(void) {
    static const size_t nowhere[] = {255, 256, 4095, (size_t)1 << 60, (size_t)-1};
    void *places[1] = {bytes}, *found = bytes;
    ulong lengths[1] = {8};
    lapi_vec_t vector = {LAPI_GEN_IOVECTOR, 1, NULL, NULL};
    lapi_xfer_t what;
    unsigned i;
    vector.info = places, vector.len = lengths;
    for (i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        void *handler = (void *)nowhere[i];
        REFUSED(LAPI_ERR_HDR_HNDLR_NULL, LAPI_Addr_set(hndl, handler, 7));
        OK(LAPI_Addr_get(hndl, &found, 7));
        CHECK(found == NULL);
        /* An index. */
        if (nowhere[i] < 256)
            continue;
        REFUSED(LAPI_ERR_HDR_HNDLR_NULL,
                LAPI_Amsend(hndl, next, handler, bytes, 8, bytes, 8, &counter, &other, &third));
        REFUSED(LAPI_ERR_HDR_HNDLR_NULL,
                LAPI_Amsendv(hndl, next, handler, bytes, 8, &vector, &counter, &other, &third));
        memset(&what, 0, sizeof what);
        what.Am.Xfer_type = LAPI_AM_XFER, what.Am.tgt = (uint)next, what.Am.hdr_hdl = (lapi_long_t)nowhere[i];
        what.Am.org_cntr = &other, what.Am.cmpl_cntr = &third;
        REFUSED(LAPI_ERR_HDR_HNDLR_NULL, LAPI_Xfer(hndl, &what));
    }
}

static void arguments(void) {
    static const uint outside[] = {UINT_MAX, INT_MAX, 1u << 31};
    const int largest = query(MAX_UHDR_SZ);
    int value = 9, i;
    char *big = room((unsigned long)largest + 8);
    void *address = &value;
    lapi_info_t info;
    lapi_handle_t second = 99;
    int *crooked = (int *)(void *)((char *)&wide + 1);

    memset(&info, 0, sizeof info);
    REFUSED(LAPI_ERR_ALL_HNDL_IN_USE, LAPI_Init(&second, &info));
    CHECK(second == 99);

    for (i = 0; i < 4; i++) {
        uint to = i < 3 ? outside[i] : (uint)n;
        REFUSED(LAPI_ERR_TGT, LAPI_Amsend(hndl, to, (void *)note, bytes, 8, bytes, 8, &counter, &other, &third));
        REFUSED(LAPI_ERR_TGT, LAPI_Put(hndl, to, 8, bytes + 16, bytes, &counter, &other, &third));
        REFUSED(LAPI_ERR_TGT, LAPI_Get(hndl, to, 8, bytes, bytes + 16, &counter, &other));
        REFUSED(LAPI_ERR_TGT, LAPI_Rmw(hndl, SWAP, to, &number, operands, &result, &counter));
        REFUSED(LAPI_ERR_TGT, LAPI_Rmw64(hndl, SWAP, to, &wide, wide_operands, &wide_result, &counter));
        REFUSED(LAPI_ERR_TGT, LAPI_Purge_totask(hndl, to));
        REFUSED(LAPI_ERR_TGT, LAPI_Resume_totask(hndl, to));
    }
    REFUSED(LAPI_ERR_HDR_HNDLR_NULL, LAPI_Amsend(hndl, me, NULL, bytes, 8, bytes, 8, &counter, &other, &third));
    no_function();
    REFUSED(LAPI_ERR_UHDR_NULL, LAPI_Amsend(hndl, me, (void *)note, NULL, 8, NULL, 0, &counter, &other, &third));
    for (i = 1; i < 8; i++)
        if (i % 4 != 0)
            REFUSED(LAPI_ERR_UHDR_LEN,
                    LAPI_Amsend(hndl, me, (void *)note, big, (uint)i, NULL, 0, &counter, &other, &third));
    REFUSED(LAPI_ERR_UHDR_LEN,
            LAPI_Amsend(hndl, me, (void *)note, big, (uint)largest + 4, NULL, 0, &counter, &other, &third));
    REFUSED(LAPI_ERR_UHDR_LEN,
            LAPI_Amsend(hndl, me, (void *)note, big, UINT_MAX - 3, NULL, 0, &counter, &other, &third));
    REFUSED(LAPI_ERR_ORG_ADDR_NULL, LAPI_Amsend(hndl, me, (void *)note, NULL, 0, NULL, 1, &counter, &other, &third));
    REFUSED(LAPI_ERR_DATA_LEN,
            LAPI_Amsend(hndl, me, (void *)note, NULL, 0, bytes, ULONG_MAX, &counter, &other, &third));
    REFUSED(LAPI_ERR_ORG_ADDR_NULL, LAPI_Put(hndl, me, 8, bytes, NULL, &counter, &other, &third));
    REFUSED(LAPI_ERR_TGT_ADDR_NULL, LAPI_Put(hndl, me, 8, NULL, bytes, &counter, &other, &third));
    REFUSED(LAPI_ERR_DATA_LEN, LAPI_Put(hndl, me, LAPI_MAX_MSG_SZ + 1, bytes, bytes, &counter, &other, &third));
    REFUSED(LAPI_ERR_ORG_ADDR_NULL, LAPI_Get(hndl, me, 8, bytes, NULL, &counter, &other));
    REFUSED(LAPI_ERR_TGT_ADDR_NULL, LAPI_Get(hndl, me, 8, NULL, bytes, &counter, &other));
    REFUSED(LAPI_ERR_DATA_LEN, LAPI_Get(hndl, me, ULONG_MAX, bytes, bytes, &counter, &other));

    REFUSED(LAPI_ERR_RMW_OP, LAPI_Rmw(hndl, (RMW_ops_t)4, me, &number, operands, &result, &counter));
    REFUSED(LAPI_ERR_RMW_OP, LAPI_Rmw64(hndl, (RMW_ops_t)77, me, &wide, wide_operands, &wide_result, &counter));
    REFUSED(LAPI_ERR_TGT_VAR_NULL, LAPI_Rmw(hndl, SWAP, me, NULL, operands, &result, &counter));
    REFUSED(LAPI_ERR_TGT_VAR_NULL, LAPI_Rmw64(hndl, SWAP, me, NULL, wide_operands, &wide_result, &counter));
    REFUSED(LAPI_ERR_IN_VAL_NULL, LAPI_Rmw(hndl, SWAP, me, &number, NULL, &result, &counter));
    REFUSED(LAPI_ERR_IN_VAL_NULL, LAPI_Rmw64(hndl, COMPARE_AND_SWAP, me, &wide, NULL, &wide_result, &counter));
    REFUSED(LAPI_ERR_OP_SZ, LAPI_Rmw(hndl, SWAP, me, crooked, operands, &result, &counter));
    REFUSED(LAPI_ERR_OP_SZ,
            LAPI_Rmw64(hndl, SWAP, me, (long long *)(void *)crooked, wide_operands, &wide_result, &counter));

    REFUSED(LAPI_ERR_CNTR_NULL, LAPI_Setcntr(hndl, NULL, 1));
    REFUSED(LAPI_ERR_CNTR_NULL, LAPI_Getcntr(hndl, NULL, &value));
    REFUSED(LAPI_ERR_CNTR_NULL, LAPI_Waitcntr(hndl, NULL, 1, &value));
    REFUSED(LAPI_ERR_RET_PTR_NULL, LAPI_Getcntr(hndl, &counter, NULL));
    REFUSED(LAPI_ERR_RET_PTR_NULL, LAPI_Qenv(hndl, TASK_ID, NULL));
    REFUSED(LAPI_ERR_RET_PTR_NULL, LAPI_Addr_get(hndl, NULL, 1));
    for (i = 0; i < 4; i++) {
        int index = i == 0 ? 0 : i == 1 ? -1 : i == 2 ? query(LOC_ADDRTBL_SZ) : INT_MAX;
        REFUSED(LAPI_ERR_ADDR_HNDL_RANGE, LAPI_Addr_set(hndl, (void *)note, index));
        REFUSED(LAPI_ERR_ADDR_HNDL_RANGE, LAPI_Addr_get(hndl, &address, index));
    }
    REFUSED(LAPI_ERR_ADDR_TBL_NULL, LAPI_Address_init(hndl, &value, NULL));
    REFUSED(LAPI_ERR_ADDR_TBL_NULL, LAPI_Address_init64(hndl, 1, NULL));
    REFUSED(LAPI_ERR_QUERY_TYPE, LAPI_Qenv(hndl, (lapi_query_t)1000, &value));
    REFUSED(LAPI_ERR_QUERY_TYPE, LAPI_Senv(hndl, (lapi_query_t)1000, 1));
    REFUSED(LAPI_ERR_QUERY_TYPE, LAPI_Senv(hndl, TASK_ID, 1));
    REFUSED(LAPI_ERR_SET_VAL, LAPI_Senv(hndl, INTERRUPT_SET, 2));
    REFUSED(LAPI_ERR_SET_VAL, LAPI_Senv(hndl, ERROR_CHK, -1));
    REFUSED(LAPI_ERR_SET_VAL, LAPI_Senv(hndl, TIMEOUT, query(MAX_TIMEOUT) + 1));
    CHECK(value == 9 && address == &value);

    OK(LAPI_Purge_totask(hndl, (uint)next));
    REFUSED(LAPI_ERR_TGT_PURGED, LAPI_Amsend(hndl, next, (void *)1, NULL, 0, NULL, 0, NULL, &other, &third));
    REFUSED(LAPI_ERR_TGT_PURGED, LAPI_Put(hndl, next, 8, bytes, bytes, NULL, &other, &third));
    REFUSED(LAPI_ERR_TGT_PURGED, LAPI_Get(hndl, next, 8, bytes, bytes, NULL, &other));
    REFUSED(LAPI_ERR_TGT_PURGED, LAPI_Rmw(hndl, SWAP, next, &number, operands, &result, &counter));
    OK(LAPI_Resume_totask(hndl, (uint)next));
    free(big);
    fence_all();
    nothing(__LINE__);
}

/* Vectors, each wrong in one way, in every call that takes them. */
struct wrong {
    int type, places;
    void *info[3];
    ulong len[3];
    int code;
};

static void *nowhere = NULL;

static void refuse_vectors(const struct wrong *org, const struct wrong *tgt, int code) {
    struct wrong both[2] = {*org, *tgt};
    lapi_vec_t vectors[2];
    int i;
    for (i = 0; i < 2; i++) {
        vectors[i].vec_type = (lapi_vectype_t)both[i].type;
        vectors[i].num_vecs = (uint)both[i].places;
        vectors[i].info = both[i].info[0] == &nowhere ? NULL : both[i].info;
        vectors[i].len = both[i].len[0] == 99 ? NULL : both[i].len;
    }
    REFUSED(code, LAPI_Putv(hndl, me, &vectors[1], &vectors[0], &counter, &other, &third));
    /* What is too little room for a put is enough for a get. */
    if (org->type != LAPI_GEN_GENERIC)
        REFUSED(code, LAPI_Getv(hndl, me, &vectors[1], &vectors[0], &counter, &other));
    /* A message has the origin's only. */
    if (tgt->code == 0 && org->code == code)
        REFUSED(code, LAPI_Amsendv(hndl, me, (void *)note, NULL, 0, &vectors[0], &counter, &other, &third));
}

static void vectors(void) {
    enum { LIST = LAPI_GEN_IOVECTOR, STRIDED = LAPI_GEN_STRIDED_XFER, ANY = LAPI_GEN_GENERIC };
    const ulong huge = LAPI_MAX_MSG_SZ;
    const struct wrong good = {LIST, 2, {bytes, bytes + 8}, {8, 8}, 0};
    const struct wrong good_strided = {STRIDED, 2, {bytes, (void *)8, (void *)16}, {0}, 0};
    const struct wrong origins[] = {
        {9, 1, {bytes}, {8}, LAPI_ERR_ORG_VEC_TYPE},
        {LIST, 2, {bytes, NULL}, {8, 8}, LAPI_ERR_ORG_VEC_ADDR},
        {LIST, 2, {&nowhere}, {8, 8}, LAPI_ERR_ORG_VEC_ADDR},
        {LIST, 2, {bytes, bytes}, {99, 8}, LAPI_ERR_ORG_VEC_LEN},
        {LIST, 2, {bytes, bytes}, {huge, huge}, LAPI_ERR_ORG_VEC_LEN},
        {STRIDED, 2, {NULL, (void *)8, (void *)16}, {0}, LAPI_ERR_STRIDE_ORG_ADDR_NULL},
        {STRIDED, 2, {bytes, (void *)8, (void *)4}, {0}, LAPI_ERR_ORG_STRIDE},
        {STRIDED, 4, {bytes, (void *)8, (void *)huge}, {0}, LAPI_ERR_ORG_EXTENT},
    };
    static const int at_target[] = {LAPI_ERR_TGT_VEC_TYPE, LAPI_ERR_TGT_VEC_ADDR, LAPI_ERR_TGT_VEC_ADDR,
                                    LAPI_ERR_TGT_VEC_LEN, LAPI_ERR_TGT_VEC_LEN, LAPI_ERR_STRIDE_TGT_ADDR_NULL,
                                    LAPI_ERR_TGT_STRIDE, LAPI_ERR_TGT_EXTENT};
    const struct wrong pairs[][2] = {
        {{LIST, 2, {bytes, bytes + 8}, {8, 8}, 0}, {LIST, 1, {bytes}, {16}, 0}},
        {{LIST, 2, {bytes, bytes + 8}, {8, 8}, 0}, {STRIDED, 2, {bytes, (void *)8, (void *)8}, {0}, 0}},
        {{LIST, 2, {bytes, bytes + 8}, {8, 8}, 0}, {LIST, 2, {bytes, bytes + 8}, {8, 7}, 0}},
        {{STRIDED, 2, {bytes, (void *)8, (void *)8}, {0}, 0}, {STRIDED, 2, {bytes, (void *)4, (void *)8}, {0}, 0}},
        {{ANY, 2, {bytes, bytes + 8}, {8, 8}, 0}, {ANY, 1, {bytes}, {15}, 0}},
    };
    static const int differ[] = {LAPI_ERR_VEC_NUM_DIFF, LAPI_ERR_VEC_TYPE_DIFF, LAPI_ERR_VEC_LEN_DIFF,
                                 LAPI_ERR_VEC_LEN_DIFF, LAPI_ERR_VEC_LEN_DIFF};
    lapi_vec_t vector = {LAPI_GEN_IOVECTOR, 0, NULL, NULL};
    unsigned i;
    for (i = 0; i < sizeof origins / sizeof *origins; i++) {
        struct wrong at = origins[i];
        const struct wrong *other_side = origins[i].type == STRIDED ? &good_strided : &good;
        refuse_vectors(&origins[i], other_side, origins[i].code);
        at.code = at_target[i];
        refuse_vectors(other_side, &at, at_target[i]);
    }
    for (i = 0; i < sizeof pairs / sizeof *pairs; i++)
        refuse_vectors(&pairs[i][0], &pairs[i][1], differ[i]);
    REFUSED(LAPI_ERR_ORG_VEC_NULL, LAPI_Putv(hndl, me, &vector, NULL, &counter, &other, &third));
    REFUSED(LAPI_ERR_TGT_VEC_NULL, LAPI_Putv(hndl, me, NULL, &vector, &counter, &other, &third));
    REFUSED(LAPI_ERR_ORG_VEC_NULL, LAPI_Getv(hndl, me, &vector, NULL, &counter, &other));
    REFUSED(LAPI_ERR_TGT_VEC_NULL, LAPI_Getv(hndl, me, NULL, &vector, &counter, &other));
    REFUSED(LAPI_ERR_ORG_VEC_NULL, LAPI_Amsendv(hndl, me, (void *)note, NULL, 0, NULL, &counter, &other, &third));
    REFUSED(LAPI_ERR_HDR_HNDLR_NULL, LAPI_Amsendv(hndl, me, NULL, NULL, 0, &vector, &counter, &other, &third));
    REFUSED(LAPI_ERR_TGT, LAPI_Amsendv(hndl, n, (void *)note, NULL, 0, &vector, &counter, &other, &third));
    REFUSED(LAPI_ERR_TGT, LAPI_Putv(hndl, n, &vector, &vector, &counter, &other, &third));
    REFUSED(LAPI_ERR_TGT, LAPI_Getv(hndl, n, &vector, &vector, &counter, &other));
}

static void xfers(void) {
    static const int unknown[] = {LAPI_DGSP_XFER, LAPI_RDMA_XFER, LAPI_AMX_XFER, LAPI_MC_XFER, LAPI_LAST_XFER, -1, 1000};
    lapi_xfer_t what;
    uint task = 0;
    int state = 9;
    unsigned i;
    REFUSED(LAPI_ERR_XFER_CMD, LAPI_Xfer(hndl, NULL));
    for (i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        memset(&what, 0, sizeof what);
        what.Xfer_type = (lapi_xfer_type_t)unknown[i];
        REFUSED(LAPI_ERR_XFER_CMD, LAPI_Xfer(hndl, &what));
    }
    memset(&what, 0, sizeof what);
    what.Rmw.Xfer_type = LAPI_RMW_XFER, what.Rmw.op = SWAP, what.Rmw.tgt = (uint)me, what.Rmw.size = 16;
    what.Rmw.tgt_var = (lapi_long_t)&number, what.Rmw.in_val = operands, what.Rmw.org_cntr = &counter;
    REFUSED(LAPI_ERR_OP_SZ, LAPI_Xfer(hndl, &what));
    memset(&what, 0, sizeof what);
    what.Am.Xfer_type = LAPI_AM_LW_XFER, what.Am.tgt = (uint)me, what.Am.hdr_hdl = 1;
    what.Am.udata = bytes, what.Am.udata_len = 1000;
    REFUSED(LAPI_ERR_LW_DATA_LEN, LAPI_Xfer(hndl, &what));
    what.Am.udata_len = 8, what.Am.hdr_hdl = (lapi_long_t)note;
    REFUSED(LAPI_ERR_ADDR_HNDL_RANGE, LAPI_Xfer(hndl, &what));
    memset(&what, 0, sizeof what);
    what.Put.Xfer_type = LAPI_PUT_XFER, what.Put.tgt = (uint)n, what.Put.org_cntr = &counter;
    REFUSED(LAPI_ERR_TGT, LAPI_Xfer(hndl, &what));
    what.Put.tgt = (uint)me, what.Put.len = 8;
    REFUSED(LAPI_ERR_ORG_ADDR_NULL, LAPI_Xfer(hndl, &what));
    REFUSED(LAPI_ERR_CNTR_NULL, LAPI_Setcntr_wstatus(hndl, NULL, 1, &task, &state));
    REFUSED(LAPI_ERR_RET_PTR_NULL, LAPI_Setcntr_wstatus(hndl, &counter, 1, &task, NULL));
    REFUSED(LAPI_ERR_CNTR_NULL, LAPI_Nopoll_wait(hndl, NULL, 1, &state));
    REFUSED(LAPI_ERR_CNTR_VAL, LAPI_Nopoll_wait(hndl, &counter, 0, &state));
    REFUSED(LAPI_ERR_MSG_INFO_NULL, LAPI_Msgpoll(hndl, 1, NULL));
    CHECK(state == 9);
}

/* An address outside memory: of a put, an error at once; as the place of a long message, one at both ends. No counter moves,
 * and nothing waits for the message. */
static void *misplace(lapi_handle_t *handle, void *uhdr, uint *uhdr_len, ulong *msg_len, compl_hndlr_t **then,
                      void **user_info) {
    (void)handle, (void)uhdr, (void)uhdr_len, (void)msg_len, (void)then, (void)user_info;
    return (void *)4096;
}

static void place(void) {
    char *data = room(100000);
    int i, code = LAPI_SUCCESS;
    start();
    OK(LAPI_Addr_set(hndl, (void *)misplace, 1));
    at(0, NULL);
    if (me == 0) {
        GIVES(LAPI_ERR_BAD_ADDRESS, LAPI_Put(hndl, 1, 100000, (void *)4096, data, NULL, &other, &third));
        GIVES(LAPI_ERR_BAD_ADDRESS, LAPI_Get(hndl, 1, 100000, (void *)4096, data, NULL, &other));
        GIVES(LAPI_ERR_BAD_ADDRESS, LAPI_Put(hndl, 1, 8, (void *)8, data, NULL, &other, &third));
        GIVES(LAPI_ERR_BAD_ADDRESS, LAPI_Put(hndl, 1, 0, NULL, NULL, (lapi_cntr_t *)8, &other, &third));
        OK(LAPI_Amsend(hndl, 1, (void *)1, NULL, 0, data, 100000, NULL, &other, &third));
    }
    for (i = 0; i < 20000 && code == LAPI_SUCCESS; i++) {
        code = LAPI_Probe(hndl);
        pause_ms(1);
    }
    CHECK(code == LAPI_ERR_BAD_ADDRESS);
    fence_all();
    free(data);
    CHECK(other.cntr == 3 && third.cntr == 3);
    OK(LAPI_Term(hndl));
    if (me == 0)
        printf("place: an error at both ends\n");
}

/* A child is no task; it ends as any process. */
static void forked(void) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        lapi_info_t info;
        lapi_handle_t handle = 99;
        memset(&info, 0, sizeof info);
        all_are(LAPI_ERR_HNDL_INVALID, hndl);
        GIVES(LAPI_ERR_HNDL_INVALID, LAPI_Init(&handle, &info));
#ifdef __SANITIZE_ADDRESS__
        /* What other threads of the parent hold counts as lost here. */
        _exit(handle == 99 ? 0 : 1);
#endif
        exit(handle == 99 ? 0 : 1);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int told_code, told_times;

static void on_error(lapi_handle_t *handle, int *code, lapi_err_t *kind, int *task, int *src) {
    CHECK(*handle == hndl && *kind == AM_ERR && *task == me);
    CHECK(*src == (n == 1 ? 0 : 1 - me));
    told_code = *code, told_times++;
}

static void *places_of_target[1];
static ulong lengths_of_target[1] = {4};
static lapi_vec_t too_short = {LAPI_GEN_IOVECTOR, 1, places_of_target, lengths_of_target};

static lapi_vec_t *name_too_short(lapi_handle_t *handle, void *uhdr, uint *uhdr_len, ulong *len, compl_hndlr_t **then,
                                  void **parameter) {
    (void)handle, (void)uhdr, (void)uhdr_len, (void)len, (void)then, (void)parameter;
    return &too_short;
}

/* L46: places that do not fit the message are an error at both ends, of which both error handlers are told. */
static void unsuited(void) {
    int code = LAPI_SUCCESS, i;
    void *places[1] = {bytes};
    ulong lengths[1] = {8};
    lapi_vec_t vector = {LAPI_GEN_IOVECTOR, 1, NULL, NULL};
    lapi_info_t info;
    vector.info = places, vector.len = lengths, places_of_target[0] = bytes;
    memset(&info, 0, sizeof info);
    info.err_hndlr = on_error;
    OK(LAPI_Init(&hndl, &info));
    me = query(TASK_ID), n = query(NUM_TASKS), next = (me + 1) % n;
    OK(LAPI_Addr_set(hndl, (void *)name_too_short, 5));
    at(0, NULL);
    if (me == 0)
        OK(LAPI_Amsendv(hndl, next, (void *)5, NULL, 0, &vector, NULL, NULL, NULL));
    for (i = 0; i < 20000 && code == LAPI_SUCCESS; i++) {
        code = LAPI_Probe(hndl);
        pause_ms(1);
    }
    CHECK(code == LAPI_ERR_VEC_LEN_DIFF && told_code == code && told_times == 1);
    fence_all();
    OK(LAPI_Term(hndl));
    if (me == 0)
        printf("unsuited: an error at both ends\n");
}

/* L54: an index that is not set at the target is an error at both ends, and no jump. */
static void unset(void) {
    int code = LAPI_SUCCESS, i, seen = 0, all;
    lapi_info_t info;
    lapi_cntr_t sent;
    memset(&info, 0, sizeof info);
    info.err_hndlr = on_error;
    OK(LAPI_Init(&hndl, &info));
    me = query(TASK_ID);
    n = query(NUM_TASKS);
    next = (me + 1) % n;
    all = n == 1 ? 4 : me == 0 || me == 1 ? 2 : 0;
    set(&sent, 0);
    set(&counter, 3);
    /* A barrier that tells nothing of messages, as a fence does. */
    at(0, NULL);
    if (me == 0) {
        OK(LAPI_Amsend(hndl, next, (void *)9, NULL, 0, bytes, 8, NULL, &sent, &counter));
        OK(LAPI_Amsend(hndl, next, (void *)255, NULL, 0, bytes, 8, NULL, &sent, &counter));
    }
    for (i = 0; i < 20000 && seen < all; i++) {
        code = LAPI_Probe(hndl);
        if (code != LAPI_SUCCESS) {
            CHECK(code == LAPI_ERR_NO_HNDLR_SET && told_code == code);
            seen++;
        } else {
            pause_ms(1);
        }
    }
    CHECK(seen == told_times && seen == all);
    /* The completion counter of a message that was refused does not move; the job goes on. */
    fence_all();
    CHECK(value_of(&counter) == 3);
    OK(LAPI_Term(hndl));
    if (me == 0)
        printf("unset: an error at both ends\n");
}

/* A task that ends without LAPI_Term is lost to the others, whose calls return. */
static void lost(void) {
    lapi_cntr_t never, left, *at_first;
    int code;
    start();
    set(&never, 0);
    set(&left, 0);
    at_first = at(0, &left);
    if (me == 0) {
        /* A task that is still in its collective call would fail there. */
        CHECK(wait_for(&left, n - 1) == 0);
        exit(0);
    }
    OK(LAPI_Put(hndl, 0, 0, NULL, NULL, at_first, NULL, NULL));
    code = LAPI_Waitcntr(hndl, &never, 1, NULL);
    GIVES(LAPI_ERR_PEER_LOST, code);
    CHECK(never.cntr == 0);
    printf("lost: task %d was told\n", me);
    fflush(stdout);
    _exit(0);
}

static void on_no_memory(lapi_handle_t *handle, int *code, lapi_err_t *kind, int *task, int *src) {
    CHECK(*handle == hndl && *kind == INT_ERR && *task == me && *src == -1);
    told_code = *code, told_times++;
}

/* There is no memory for the message of a vector, or for the list of the places of a get. The error handler is told. */
static void memory(void) {
    /* Pieces of four bytes: their list is larger than what a thread's heap may grow to, 64 MiB. They need not be there. */
    void *places[3] = {bytes, NULL, NULL}, *pieces[3] = {bytes, (void *)4, (void *)8};
    lapi_vec_t many = {LAPI_GEN_STRIDED_XFER, 4000000, NULL, NULL};
    lapi_vec_t vector = {LAPI_GEN_STRIDED_XFER, UINT_MAX, NULL, NULL};
    lapi_xfer_t what;
    lapi_info_t info;
    struct rlimit limit, least;
    void *spare;
    vector.info = places, many.info = pieces;
    memset(&info, 0, sizeof info);
    info.err_hndlr = on_no_memory;
    OK(LAPI_Init(&hndl, &info));
    me = query(TASK_ID), n = query(NUM_TASKS), next = (me + 1) % n;
    memset(&what, 0, sizeof what);
    what.Amv.Xfer_type = LAPI_AMV_XFER, what.Amv.tgt = (uint)next, what.Amv.hdr_hdl = (lapi_long_t)(size_t)note;
    what.Amv.org_vec = &vector, what.Amv.tgt_cntr = (lapi_long_t)(size_t)&counter, what.Amv.org_cntr = &other;
    what.Amv.cmpl_cntr = &third;
    fence_all();
    /* Small requests are met from here. */
    spare = room(100000);
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
    least = limit, least.rlim_cur = 1 << 20;
    free(spare);
    /* No other thread asks for memory meanwhile. */
    OK(LAPI_Senv(hndl, INTERRUPT_SET, 0));
    CHECK(setrlimit(RLIMIT_AS, &least) == 0);
    REFUSED(LAPI_ERR_MEMORY_EXHAUSTED,
            LAPI_Amsendv(hndl, (uint)next, (void *)note, NULL, 0, &vector, &counter, &other, &third));
    REFUSED(LAPI_ERR_MEMORY_EXHAUSTED, LAPI_Xfer(hndl, &what));
    REFUSED(LAPI_ERR_MEMORY_EXHAUSTED, LAPI_Getv(hndl, (uint)next, &many, &many, &counter, &other));
    CHECK(told_code == LAPI_ERR_MEMORY_EXHAUSTED && told_times == 3);
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    OK(LAPI_Senv(hndl, INTERRUPT_SET, 1));
    fence_all();
    nothing(__LINE__);
    OK(LAPI_Term(hndl));
    if (me == 0)
        printf("memory: %d tasks\n", n);
}

/* A start that fails has a code, and its own text. */
static void bad_start(void) {
    lapi_handle_t handle = 99;
    lapi_info_t info;
    char text[LAPI_MAX_ERR_STRING];
    memset(&info, 0, sizeof info);
    GIVES(LAPI_ERR_RUNTIME, LAPI_Init(&handle, &info));
    CHECK(handle == 99);
    OK(LAPI_Msg_string(LAPI_ERR_RUNTIME, text));
    printf("start: %s\n", text);
}

int main(int argc, char **argv) {
    alarm(90);
    counter.cntr = other.cntr = third.cntr = 3;
    if (argc == 2 && strcmp(argv[1], "unset") == 0)
        unset();
    else if (argc == 2 && strcmp(argv[1], "unsuited") == 0)
        unsuited();
    else if (argc == 2 && strcmp(argv[1], "lost") == 0)
        lost();
    else if (argc == 2 && strcmp(argv[1], "start") == 0)
        bad_start();
    else if (argc == 2 && strcmp(argv[1], "place") == 0)
        place();
    else if (argc == 2 && strcmp(argv[1], "memory") == 0)
        memory();
    if (argc == 2)
        return 0;
    texts();
    no_handles();
    in_another_thread(elsewhere);
    information();
    no_handles();

    start();
    no_handles();
    in_another_thread(elsewhere);
    information();
    arguments();
    vectors();
    xfers();
    forked();
    fence_all();
    nothing(__LINE__);
    OK(LAPI_Term(hndl));
    /* A handle that was ended. */
    all_are(LAPI_ERR_HNDL_INVALID, hndl);
    no_handles();
    in_another_thread(elsewhere);
    information();
    if (me == 0)
        printf("misuse: %d tasks\n", n);
    return 0;
}
