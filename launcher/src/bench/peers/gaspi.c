
/* GASPI through the C library: the calls of gaspi-notify, gaspi-post, gaspi-wait and gaspi-waitsome. */
#include <GASPI.h>

enum { BYTES = 1 << 20, REQUESTS = 1000, NOTE = 7, NOTES = 65536 };

static gaspi_rank_t me;
static gaspi_size_t size;
static unsigned long *source;
static volatile unsigned long *came;
static unsigned round_now;
static volatile unsigned long sink;

static void check(int code) {
    if (code == GASPI_SUCCESS) return;
    fprintf(stderr, "%s\n", gaspi_error_str(code));
    exit(1);
}

static void throw_to(gaspi_rank_t rank) {
    *source = round_now;
    check(gaspi_write_notify(0, 0, rank, 0, BYTES / 2, size, NOTE, round_now, 0, GASPI_BLOCK));
}

static void catch_one(void) {
    gaspi_notification_id_t first;
    gaspi_notification_t value;
    check(gaspi_notify_waitsome(0, NOTE, 1, &first, GASPI_BLOCK));
    check(gaspi_notify_reset(0, first, &value));
    sink = *came;
    /* The queue counts what was posted until a wait. */
    if (round_now % REQUESTS == 0) check(gaspi_wait(0, GASPI_BLOCK));
}

static double batch(int is_post, long n) {
    check(gaspi_barrier(GASPI_GROUP_ALL, GASPI_BLOCK));
    double begin = now_ns();
    for (long i = 0; i < (me < 2 ? n : 0); i++) {
        if (is_post) {
            const gaspi_offset_t offset = 8 * (i % REQUESTS);
            if (me != 0) break;
            check(gaspi_write(0, offset, 1, 0, BYTES / 2 + offset, size, 0, GASPI_BLOCK));
            if ((i + 1) % REQUESTS == 0) check(gaspi_wait(0, GASPI_BLOCK));
            continue;
        }
        round_now++;
        if (me == 0) throw_to(1), catch_one();
        else catch_one(), throw_to(0);
    }
    check(gaspi_wait(0, GASPI_BLOCK));
    return (now_ns() - begin) / n / (is_post ? 1 : 2);
}

/* Waits on a queue of requests that have finished; the posts before are not timed. */
static double wait_batch(void) {
    check(gaspi_barrier(GASPI_GROUP_ALL, GASPI_BLOCK));
    if (me != 0) return 0;
    for (int i = 0; i < REQUESTS; i++)
        check(gaspi_write(0, 8 * i, 1, 0, BYTES / 2 + 8 * i, size, 0, GASPI_BLOCK));
    double begin = now_ns();
    check(gaspi_wait(0, GASPI_BLOCK));
    return now_ns() - begin;
}

/* The search for the last of all notifications, which stays set. */
static double waitsome_batch(long n) {
    gaspi_notification_id_t first;
    check(gaspi_barrier(GASPI_GROUP_ALL, GASPI_BLOCK));
    double begin = now_ns();
    for (long i = 0; i < n; i++) {
        check(gaspi_notify_waitsome(0, 0, NOTES, &first, GASPI_BLOCK));
        if (first != NOTES - 1) exit(1);
    }
    return (now_ns() - begin) / n;
}

int main(int argc, char **argv) {
    gaspi_config_t config;
    gaspi_pointer_t memory;
    check(gaspi_config_get(&config));
    config.queue_size_max = 4096;
    config.notification_num = NOTES;
    check(gaspi_config_set(config));
    check(gaspi_proc_init(GASPI_BLOCK));
    check(gaspi_proc_rank(&me));
    check(gaspi_segment_create(0, BYTES, GASPI_GROUP_ALL, GASPI_BLOCK, GASPI_MEM_INITIALIZED));
    check(gaspi_segment_ptr(0, &memory));
    source = memory;
    came = (unsigned long *)((char *)memory + BYTES / 2);
    const int is_post = !strcmp(argv[1], "gaspi-post");
    const int is_wait = !strcmp(argv[1], "gaspi-wait"), is_search = !strcmp(argv[1], "gaspi-waitsome");
    const int batches = (is_wait ? 10 : 1) * atoi(argv[2]);
    const long shorten = atol(argv[3]);
    for (int a = 4; a < argc; a++) {
        size = strtoul(argv[a], NULL, 10);
        if (size > BYTES / 4 || (size < 1) != is_search) continue;
        if (is_search) {
            check(gaspi_notify(0, me, NOTES - 1, 1, 0, GASPI_BLOCK));
            check(gaspi_wait(0, GASPI_BLOCK));
        }
        const long n = is_search ? operations(500, 1l << 20, 1, shorten)
                       : is_post ? operations(50000, 16l << 20, size, shorten)
                                 : operations(2000, 8l << 20, size, shorten);
        for (int b = -2; b < batches; b++) {
            const double ns = is_wait ? wait_batch() : is_search ? waitsome_batch(n) : batch(is_post, n);
            if (b >= 0 && me == 0) report(size, ns);
        }
    }
    check(gaspi_barrier(GASPI_GROUP_ALL, GASPI_BLOCK));
    check(gaspi_proc_term(GASPI_BLOCK));
    return 0;
}
