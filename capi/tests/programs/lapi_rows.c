/* The rows of LAPI's table about messages, counters, fences and settings. Each task sends to the next one. */
#include "lapi_test.h"

/* What the user header asks of the handlers at the target. */
enum {
    CONSUME = 1,
    BURY = 2,
    DROP = 4,
    THEN = 8,
    INLINE = 16,
    LOCAL = 32,
    REPLY = 64,
    FETCH = 128,
    CALLS = 256,
    GATE = 512,
    WRONG_REPLY = 1024,
    SLOW = 2048
};

struct header {
    unsigned mode, tag;
    /* An address at the target, or at the origin. */
    unsigned char *address;
    unsigned long len;
};

/* What handlers saw, under this lock: they run on other threads too. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int calls, dones, depth, deepest, drops, codes_seen[16], codes_count, gate_open;
static struct header last;
static uint last_header_len;
static ulong last_len;
static int last_src, last_flags, last_ctl, last_had_data;
static pthread_t header_thread, done_thread;
static unsigned char consumed[4096], *place;

static void forget(void) {
    pthread_mutex_lock(&lock);
    calls = dones = deepest = drops = codes_count = gate_open = 0;
    pthread_mutex_unlock(&lock);
    fence_all();
}

static int now(int *number) {
    int value;
    pthread_mutex_lock(&lock);
    value = *number;
    pthread_mutex_unlock(&lock);
    return value;
}

static void keep(int code) {
    pthread_mutex_lock(&lock);
    if (codes_count < 16)
        codes_seen[codes_count++] = code;
    pthread_mutex_unlock(&lock);
}

/* Calls that handlers may not make where nothing may be called. */
static void call_all(lapi_handle_t handle, int to) {
    lapi_cntr_t counter;
    int value = 0;
    void *table[MOST];
    counter.cntr = 0;
    keep(LAPI_Waitcntr(handle, &counter, 0, &value));
    keep(LAPI_Probe(handle));
    keep(LAPI_Fence(handle));
    keep(LAPI_Gfence(handle));
    keep(LAPI_Address_init(handle, NULL, table));
    keep(LAPI_Term(handle));
    keep(LAPI_Amsend(handle, to, (void *)1, NULL, 0, NULL, 0, NULL, NULL, NULL));
    keep(LAPI_Put(handle, to, 0, NULL, NULL, NULL, NULL, NULL));
}

static struct header done_header;

static void done(lapi_handle_t *handle, void *user_info) {
    struct header *header = user_info;
    if (header->mode & GATE)
        while (!now(&gate_open))
            pause_ms(1);
    if (header->mode & SLOW)
        pause_ms(5);
    if (header->mode & CALLS)
        call_all(*handle, last_src);
    if (header->mode & REPLY)
        keep(LAPI_Amsend(*handle, last_src, (void *)2, NULL, 0, NULL, 0, NULL, NULL, NULL));
    if (header->mode & WRONG_REPLY)
        keep(LAPI_Amsend(*handle, (last_src + 1) % n, (void *)2, NULL, 0, NULL, 0, NULL, NULL, NULL));
    if (header->mode & FETCH) {
        /* Gets from the origin, and waits, in the handler. */
        static unsigned char fetched[100000];
        lapi_cntr_t arrived;
        int left = -1;
        arrived.cntr = 0;
        keep(LAPI_Get(*handle, last_src, header->len, header->address, fetched, NULL, &arrived));
        keep(LAPI_Waitcntr(*handle, &arrived, 1, &left));
        keep(left == 0 && is_filled(fetched, header->len, last_src) ? 0 : -1);
    }
    pthread_mutex_lock(&lock);
    done_header = *header;
    done_thread = pthread_self();
    dones++;
    pthread_mutex_unlock(&lock);
    if (!(header->mode & (INLINE | LOCAL)))
        free(header);
}

static void *take(lapi_handle_t *handle, void *uhdr, uint *uhdr_len, ulong *msg_len, compl_hndlr_t **then,
                  void **user_info) {
    lapi_return_info_t *info = (lapi_return_info_t *)msg_len;
    struct header header;
    void *answer = place;
    memset(&header, 0, sizeof header);
    memcpy(&header, uhdr, *uhdr_len < sizeof header ? *uhdr_len : sizeof header);
    pthread_mutex_lock(&lock);
    if (++depth > deepest)
        deepest = depth;
    pthread_mutex_unlock(&lock);
    if (header.mode & CALLS && !(header.mode & THEN))
        call_all(*handle, info->src);
    pthread_mutex_lock(&lock);
    depth--;
    calls++;
    last = header;
    last_header_len = *uhdr_len;
    last_len = *msg_len;
    last_src = info->src;
    last_flags = info->ret_flags;
    last_ctl = info->ctl_flags;
    last_had_data = info->udata_one_pkt_ptr != NULL;
    header_thread = pthread_self();
    if (header.mode & DROP && drops++ < 2) {
        info->ctl_flags = LAPI_DROP_PKT;
        answer = NULL;
    } else if (header.mode & CONSUME && info->udata_one_pkt_ptr != NULL) {
        memcpy(consumed, info->udata_one_pkt_ptr, *msg_len);
        answer = NULL;
    }
    if (header.mode & BURY)
        info->ctl_flags = LAPI_BURY_MSG;
    if (header.mode & THEN) {
        *then = done;
        if (header.mode & (INLINE | LOCAL)) {
            info->ret_flags = header.mode & INLINE ? LAPI_SEND_REPLY : LAPI_LOCAL_STATE;
            /* The user header lives as long as an inline handler runs. */
            *user_info = uhdr;
        } else {
            *user_info = malloc(sizeof header);
            memcpy(*user_info, &header, sizeof header);
            /* Nobody reads it after this. */
            memset(uhdr, 0xEE, *uhdr_len);
        }
    }
    pthread_mutex_unlock(&lock);
    return answer;
}

static int pings;

static void *ping(lapi_handle_t *handle, void *uhdr, uint *uhdr_len, ulong *msg_len, compl_hndlr_t **then,
                  void **user_info) {
    (void)handle, (void)uhdr, (void)uhdr_len, (void)msg_len, (void)then, (void)user_info;
    pthread_mutex_lock(&lock);
    pings++;
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void *ping_other(lapi_handle_t *handle, void *uhdr, uint *uhdr_len, ulong *msg_len, compl_hndlr_t **then,
                        void **user_info) {
    pthread_mutex_lock(&lock);
    pings += 99;
    pthread_mutex_unlock(&lock);
    return ping(handle, uhdr, uhdr_len, msg_len, then, user_info);
}

static lapi_cntr_t target, origin, completion, *target_next;

static void send_mode(unsigned mode, unsigned tag, unsigned char *data, unsigned long len) {
    struct header header;
    memset(&header, 0, sizeof header);
    header.mode = mode, header.tag = tag;
    OK(LAPI_Amsend(hndl, next, (void *)1, &header, sizeof header, data, len, target_next, &origin, &completion));
}

/* Waits until each counter has moved by `events`, and no more. */
static void all_moved(int events) {
    CHECK(wait_for(&completion, events) == 0);
    CHECK(wait_for(&origin, events) == 0);
    CHECK(wait_for(&target, events) == 0);
}

static void messages(void) {
    static const unsigned long lengths[] = {0, 1, 4, 8, 24, 25, 200, 4096, 8192, 8193, 300001};
    unsigned char *data = room(20 << 20), *first, *second;
    unsigned i;
    place = room(20 << 20);

    /* L1, L3, L8, L23: counters, what the header handler gets, at every length. */
    for (i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        forget();
        fill(data, lengths[i], me + (int)i);
        send_mode(0, 100 + i, data, lengths[i]);
        all_moved(1);
        fence_all();
        CHECK(calls == 1 && last.tag == 100 + i && last_header_len == sizeof(struct header));
        CHECK(last_len == lengths[i] && last_src == before && last_flags == LAPI_NORMAL);
        CHECK(last_ctl == LAPI_DELIVER_MSG && is_filled(place, lengths[i], before + (int)i));
    }
    /* L4: handlers do not nest. L27: they may come in any order. */
    forget();
    for (i = 0; i < 50; i++)
        send_mode(i % 2 ? THEN | INLINE : 0, i, data, 40);
    all_moved(50);
    fence_all();
    CHECK(calls == 50 && deepest == 1 && dones == 25);

    /* L5, L14: a long message calls once; after the origin counter its data may be changed. */
    forget();
    fill(data, 20 << 20, me);
    send_mode(0, 1, data, 20 << 20);
    wait_for(&origin, 1);
    memset(data, 0, 20 << 20);
    wait_for(&completion, 1);
    wait_for(&target, 1);
    fence_all();
    CHECK(calls == 1 && is_filled(place, 20 << 20, before));

    /* L6: the target names the place of each message. */
    first = room(50000), second = place;
    for (i = 0; i < 4; i++) {
        place = i % 2 ? first : second;
        forget();
        fill(data, 50000, me + (int)i);
        send_mode(0, 1, data, 50000);
        all_moved(1);
        fence_all();
        CHECK(is_filled(place, 50000, before + (int)i));
    }
    place = second;
    free(first);

    /* L7: a short message is consumed where it is; of a long one there is no data yet. */
    forget();
    fill(data, 64, me);
    memset(place, 7, 64);
    send_mode(CONSUME, 1, data, 64);
    all_moved(1);
    fence_all();
    CHECK(last_had_data && is_filled(consumed, 64, before) && place[0] == 7);
    forget();
    fill(data, 1 << 20, me);
    send_mode(CONSUME, 1, data, 1 << 20);
    all_moved(1);
    fence_all();
    CHECK(!last_had_data && is_filled(place, 1 << 20, before));

    /* L9: buried, and dropped twice. */
    for (i = 0; i < 2; i++) {
        unsigned long len = i ? 100000 : 20;
        forget();
        memset(place, 9, len);
        send_mode(BURY, 1, data, len);
        all_moved(1);
        fence_all();
        CHECK(calls == 1 && place[0] == 9 && place[len - 1] == 9);
        forget();
        fill(data, len, me);
        send_mode(DROP, 1, data, len);
        all_moved(1);
        fence_all();
        CHECK(calls == 3 && is_filled(place, len, before));
    }
    free(data);
    free(place);
    place = NULL;
}

static void completion_handlers(void) {
    static unsigned char data[100000], there[100000];
    struct header header;
    int i;
    place = there;
    fill(data, sizeof data, me);

    /* L10, L13, L15, L16: after the last byte; the target counter after the handler has returned. */
    forget();
    send_mode(THEN | GATE, 5, data, sizeof data);
    /* In place, while the handler waits (L49: a fence does not wait for it). */
    OK(LAPI_Fence(hndl));
    CHECK(value_of(&completion) == 0);
    fence_all();
    CHECK(calls == 1 && now(&dones) == 0 && value_of(&target) == 0 && is_filled(there, sizeof there, before));
    fence_all();
    pthread_mutex_lock(&lock);
    gate_open = 1;
    pthread_mutex_unlock(&lock);
    all_moved(1);
    CHECK(now(&dones) == 1 && done_header.tag == 5);

    /* L11: on a thread of its own, where it gets from the origin and waits. */
    forget();
    memset(&header, 0, sizeof header);
    header.mode = THEN | FETCH, header.address = data, header.len = sizeof data;
    OK(LAPI_Amsend(hndl, next, (void *)1, &header, sizeof header, NULL, 0, target_next, &origin, &completion));
    all_moved(1);
    fence_all();
    CHECK(codes_count == 3 && codes_seen[0] == 0 && codes_seen[1] == 0 && codes_seen[2] == 0);
    CHECK(!pthread_equal(header_thread, done_thread));

    /* L12: inline, in the thread of the header handler, past 20 queued ones; it replies to the source only. */
    forget();
    pings = 0;
    fence_all();
    for (i = 0; i < 20; i++)
        send_mode(THEN | SLOW, 1, NULL, 0);
    send_mode(THEN | INLINE | REPLY, 6, NULL, 0);
    OK(LAPI_Fence(hndl));
    all_moved(21);
    while (now(&pings) < 1)
        OK(LAPI_Probe(hndl));
    fence_all();
    CHECK(pings == 1 && codes_count == 1 && codes_seen[0] == LAPI_SUCCESS);
    if (n > 1) {
        forget();
        send_mode(THEN | INLINE | WRONG_REPLY, 6, NULL, 0);
        all_moved(1);
        fence_all();
        CHECK(codes_count == 1 && codes_seen[0] == LAPI_ERR_INVALID_SEND_REPLY_TGT && pings == 1);
        CHECK(pthread_equal(header_thread, done_thread) && done_header.tag == 6);
    }

    /* L18: inline without communication; the counters move. */
    forget();
    send_mode(THEN | LOCAL | CALLS, 7, data, 100);
    all_moved(1);
    fence_all();
    CHECK(dones == 1 && done_header.tag == 7 && codes_count == 8);
    for (i = 0; i < 8; i++)
        CHECK(codes_seen[i] == LAPI_ERR_IN_HANDLER);

    /* L62: a header handler may not call. */
    forget();
    send_mode(CALLS, 7, data, 100);
    all_moved(1);
    fence_all();
    CHECK(codes_count == 8);
    for (i = 0; i < 8; i++)
        CHECK(codes_seen[i] == LAPI_ERR_IN_HANDLER);
    place = NULL;
}

static void small_rows(void) {
    struct header header;
    lapi_cntr_t counter, *there;
    void *found;
    int value, i, index = query(LOC_ADDRTBL_SZ) - 1;
    char word[12];

    /* L17: any subset of the counters. */
    memset(&header, 0, sizeof header);
    forget();
    for (i = 0; i < 8; i++)
        OK(LAPI_Amsend(hndl, next, (void *)1, &header, sizeof header, NULL, 0, i & 1 ? target_next : NULL,
                       i & 2 ? &origin : NULL, i & 4 ? &completion : NULL));
    all_moved(4);
    fence_all();
    CHECK(calls == 8);

    /* L19, L53: an index is looked up at the target. */
    pings = 0;
    OK(LAPI_Addr_set(hndl, me % 2 ? (void *)ping_other : (void *)ping, index));
    OK(LAPI_Addr_get(hndl, &found, index));
    CHECK(found == (me % 2 ? (void *)ping_other : (void *)ping));
    fence_all();
    OK(LAPI_Amsend(hndl, next, (void *)(long)index, NULL, 0, NULL, 0, NULL, NULL, &completion));
    wait_for(&completion, 1);
    fence_all();
    CHECK(pings == (me % 2 ? 100 : 1));

    /* L21: multiples of 4. */
    memset(word, 0, sizeof word);
    for (i = 4; i <= 12; i += 4) {
        forget();
        OK(LAPI_Amsend(hndl, next, (void *)1, word, (uint)i, NULL, 0, NULL, NULL, &completion));
        wait_for(&completion, 1);
        fence_all();
        CHECK(calls == 1 && last_header_len == (uint)i);
    }

    /* L31, L33, L34: counters. */
    set(&counter, 5);
    CHECK(wait_for(&counter, 3) == 2 && wait_for(&counter, 2) == 0);
    set(&counter, 7);
    CHECK(value_of(&counter) == 7 && value_of(&counter) == 7);
    OK(LAPI_Waitcntr(hndl, &counter, 7, NULL));

    /* L36: no increment is lost. */
    static lapi_cntr_t many;
    set(&many, 0);
    there = at(0, &many);
    for (i = 0; i < 5000; i++)
        OK(LAPI_Put(hndl, 0, 0, NULL, NULL, there, NULL, NULL));
    fence_all();
    CHECK(me != 0 || value_of(&many) == 5000 * n);

    /* L49: what is put after a fence is seen later. */
    static volatile int box[2];
    int *boxes, a, b, round;
    box[0] = box[1] = 0;
    boxes = at(next, (void *)box);
    for (round = 1; round <= 200; round++) {
        OK(LAPI_Put(hndl, next, sizeof round, boxes, &round, NULL, &origin, NULL));
        wait_for(&origin, 1);
        OK(LAPI_Fence(hndl));
        OK(LAPI_Put(hndl, next, sizeof round, boxes + 1, &round, NULL, &origin, NULL));
        wait_for(&origin, 1);
        b = __atomic_load_n(&box[1], __ATOMIC_ACQUIRE);
        a = __atomic_load_n(&box[0], __ATOMIC_ACQUIRE);
        CHECK(a >= b);
    }
    fence_all();
    CHECK(box[0] == 200 && box[1] == 200);

    /* L51: the fence of all is a barrier. */
    static volatile int arrived;
    int *flag, one = 1;
    arrived = 0;
    flag = at(next, (void *)&arrived);
    if (me == n - 1)
        pause_ms(100);
    OK(LAPI_Put(hndl, next, sizeof one, flag, &one, NULL, NULL, NULL));
    fence_all();
    CHECK(arrived == 1);

    /* L52: addresses of all tasks, null too, and 64-bit values. */
    void *table[MOST];
    lapi_long_t values[MOST];
    OK(LAPI_Address_init(hndl, me % 2 ? NULL : (void *)(long)(me + 10), table));
    OK(LAPI_Address_init64(hndl, 0x1234567800000000ULL + (lapi_long_t)me, values));
    for (i = 0; i < n; i++) {
        CHECK(table[i] == (i % 2 ? NULL : (void *)(long)(i + 10)));
        CHECK(values[i] == 0x1234567800000000ULL + (lapi_long_t)i);
    }

    /* L57, L58: settings. */
    CHECK(query(MAX_UHDR_SZ) >= 128 && query(MAX_DATA_SZ) > 1 << 30 && query(TIMEOUT) >= query(MIN_TIMEOUT));
    OK(LAPI_Senv(hndl, TIMEOUT, query(MAX_TIMEOUT)));
    CHECK(query(TIMEOUT) == query(MAX_TIMEOUT) && query(ERROR_CHK) == 1);
    OK(LAPI_Senv(hndl, ERROR_CHK, 0));
    CHECK(query(ERROR_CHK) == 0);
    OK(LAPI_Senv(hndl, ERROR_CHK, 1));
    for (i = TASK_ID; i <= ACK_THRESHOLD; i++) {
        CHECK(query((lapi_query_t)i) >= 0);
        if (i != ERROR_CHK && i != TIMEOUT && i != INTERRUPT_SET && i != ACK_THRESHOLD)
            GIVES(LAPI_ERR_QUERY_TYPE, LAPI_Senv(hndl, (lapi_query_t)i, 1));
    }
    GIVES(LAPI_ERR_QUERY_TYPE, LAPI_Qenv(hndl, (lapi_query_t)(ACK_THRESHOLD + 1), &value));
    CHECK(query(MAX_PORTS) == 1 && query(MAX_PKT_SZ) >= 64 && query(REX_BUF_SZ) == query(MAX_PKT_SZ));
    CHECK(query(BUF_CP_SIZE) == query(REX_BUF_SZ) && query(NUM_REX_BUFS) == 0 && query(ACK_THRESHOLD) == 30);
    OK(LAPI_Senv(hndl, ACK_THRESHOLD, 1));
    CHECK(query(ACK_THRESHOLD) == 1);
    GIVES(LAPI_ERR_SET_VAL, LAPI_Senv(hndl, ACK_THRESHOLD, 0));
    GIVES(LAPI_ERR_SET_VAL, LAPI_Senv(hndl, ACK_THRESHOLD, 31));
    OK(LAPI_Senv(hndl, ACK_THRESHOLD, 30));

    /* L63: nothing is sent to a purged task. */
    fence_all();
    OK(LAPI_Purge_totask(hndl, next));
    GIVES(LAPI_ERR_TGT_PURGED, LAPI_Amsend(hndl, next, (void *)2, NULL, 0, NULL, 0, NULL, &origin, &completion));
    OK(LAPI_Resume_totask(hndl, next));
    CHECK(value_of(&origin) == 0 && value_of(&completion) == 0);
    OK(LAPI_Amsend(hndl, next, (void *)2, NULL, 0, NULL, 0, NULL, NULL, &completion));
    wait_for(&completion, 1);

    /* L64: a text for every code. */
    char text[LAPI_MAX_ERR_STRING];
    OK(LAPI_Msg_string(LAPI_ERR_TGT, text));
    CHECK(strlen(text) > 10 && strlen(text) < sizeof text);

    /* L26: none of all this moved a counter by more than it should. */
    CHECK(value_of(&completion) == 0 && value_of(&target) == 0);
    value = value_of(&origin);
    CHECK(value == 0);
}

/* L2, L32, L59, L60: polling mode and interrupt mode. */
static void modes(void) {
    static volatile int gone_on;
    unsigned char *data = room(16 << 20);
    int *flag, one = 1, i, taken;
    CHECK(query(INTERRUPT_SET) == 1);
    gone_on = 0;
    place = room(16 << 20);
    flag = at(next, (void *)&gone_on);
    forget();
    /* Interrupt mode: the target computes and makes no call; the completion counter moves all the same. */
    if (me == 0) {
        send_mode(THEN, 1, data, 1000);
        wait_for(&completion, 1);
        OK(LAPI_Put(hndl, next, sizeof one, flag, &one, NULL, NULL, NULL));
    }
    if (n > 1 && me == 1)
        while (!gone_on)
            ;
    fence_all();
    value_of(&origin);
    set(&origin, 0);
    set(&target, 0);

    OK(LAPI_Senv(hndl, INTERRUPT_SET, 0));
    CHECK(query(INTERRUPT_SET) == 0);
    forget();
    /* Polling mode: without a call there is no progress. A task that is still in the fence may have taken the message of another. */
    fill(data, 16 << 20, me);
    taken = now(&calls);
    send_mode(0, 1, data, 16 << 20);
    pause_ms(20);
    CHECK(n == 1 || now(&calls) == taken);
    for (i = 0; now(&calls) == 0; i++)
        OK(LAPI_Probe(hndl));
    all_moved(1);
    fence_all();
    CHECK(is_filled(place, 16 << 20, before));
    OK(LAPI_Senv(hndl, INTERRUPT_SET, 1));
    fence_all();
    free(data);
    free(place);
    place = NULL;
}

/* L65: calls from several threads. */
static lapi_cntr_t done_by_threads;

static void *sender(void *argument) {
    struct header header;
    int i;
    (void)argument;
    memset(&header, 0, sizeof header);
    for (i = 0; i < 500; i++)
        OK(LAPI_Amsend(hndl, next, (void *)1, &header, sizeof header, NULL, 0, NULL, NULL, &done_by_threads));
    return NULL;
}

static void threads(void) {
    pthread_t made[4];
    int i;
    set(&done_by_threads, 0);
    forget();
    for (i = 0; i < 4; i++)
        CHECK(pthread_create(&made[i], NULL, sender, NULL) == 0);
    for (i = 0; i < 4; i++)
        CHECK(pthread_join(made[i], NULL) == 0);
    CHECK(wait_for(&done_by_threads, 2000) == 0);
    fence_all();
    CHECK(calls == 2000);
}

int main(void) {
    lapi_handle_t old = 0;
    int round;
    alarm(100);
    /* L56: a job has several handles, one after the other. */
    for (round = 0; round < 2; round++) {
        start();
        CHECK(hndl != old && hndl != 0);
        old = hndl;
        OK(LAPI_Addr_set(hndl, (void *)take, 1));
        OK(LAPI_Addr_set(hndl, (void *)ping, 2));
        set(&target, 0), set(&origin, 0), set(&completion, 0);
        target_next = at(next, &target);
        messages();
        completion_handlers();
        small_rows();
        modes();
        threads();
        OK(LAPI_Term(hndl));
        GIVES(LAPI_ERR_HNDL_INVALID, LAPI_Probe(hndl));
    }
    if (me == 0)
        printf("rows: %d tasks\n", n);
    return 0;
}
