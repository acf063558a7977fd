/*
 * Every code of GASPI.h that a call can provoke. Nothing is posted or changed by a call that is refused.
 * Usage: gaspi_misuse [start CODE]
 */
#define _GNU_SOURCE
#include "gaspi_test.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>

enum { SIZE = 4096 };

/* The address sanitizer, if there is one: memory that is not there is NULL, as without it. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }

static gaspi_return_t sum(gaspi_pointer_t a, gaspi_pointer_t b, gaspi_pointer_t result, gaspi_reduce_state_t state,
                          const gaspi_number_t num, const gaspi_size_t size, const gaspi_timeout_t timeout) {
    gaspi_number_t i;
    (void)timeout;
    CHECK(size == sizeof(long));
    for (i = 0; i < num; i++)
        ((long *)result)[i] = ((long *)a)[i] + ((long *)b)[i];
    return *(int *)state ? GASPI_ERROR : GASPI_SUCCESS;
}

/* Every call of the working phase, made rightly but for the phase. */
static void all_are(gaspi_return_t code) {
    gaspi_rank_t rank = 77;
    gaspi_group_t group = 77;
    gaspi_number_t number = 77, ids = 77;
    gaspi_notification_t value = 77;
    gaspi_queue_id_t queue = 77;
    gaspi_segment_id_t segment = 0, list[8] = {77};
    gaspi_offset_t offset = 0;
    gaspi_size_t size = 8;
    gaspi_pointer_t pointer = &rank;
    gaspi_atomic_value_t old = 77;
    gaspi_state_t states[64] = {77};
    long one = 1, result = 77;
    int flag = 0;
    gaspi_rank_t ranks[64] = {77};
    GIVES(code, gaspi_proc_term(BLOCK));
    GIVES(code, gaspi_proc_rank(&rank));
    GIVES(code, gaspi_proc_num(&rank));
    GIVES(code, gaspi_proc_local_rank(&rank));
    GIVES(code, gaspi_proc_local_num(&rank));
    GIVES(code, gaspi_proc_ping(0, BLOCK));
    GIVES(code, gaspi_proc_kill(1, BLOCK));
    GIVES(code, gaspi_connect(0, BLOCK));
    GIVES(code, gaspi_disconnect(0, BLOCK));
    GIVES(code, gaspi_state_vec_get(states));
    GIVES(code, gaspi_group_create(&group));
    GIVES(code, gaspi_group_add(0, 0));
    GIVES(code, gaspi_group_commit(0, BLOCK));
    GIVES(code, gaspi_group_delete(1));
    GIVES(code, gaspi_group_num(&number));
    GIVES(code, gaspi_group_size(0, &number));
    GIVES(code, gaspi_group_ranks(0, ranks));
    GIVES(code, gaspi_segment_alloc(0, 8, GASPI_ALLOC_DEFAULT));
    GIVES(code, gaspi_segment_bind(0, &one, 8, 0));
    GIVES(code, gaspi_segment_create(0, 8, ALL, BLOCK, GASPI_ALLOC_DEFAULT));
    GIVES(code, gaspi_segment_use(0, &one, 8, ALL, BLOCK, 0));
    GIVES(code, gaspi_segment_register(0, 0, BLOCK));
    GIVES(code, gaspi_segment_delete(0));
    GIVES(code, gaspi_segment_ptr(0, &pointer));
    GIVES(code, gaspi_segment_size(0, 0, &size));
    GIVES(code, gaspi_segment_num(&number));
    GIVES(code, gaspi_segment_list(0, list));
    GIVES(code, gaspi_segment_avail_local(list));
    GIVES(code, gaspi_write(0, 0, 0, 0, 0, 8, 0, BLOCK));
    GIVES(code, gaspi_read(0, 0, 0, 0, 0, 8, 0, BLOCK));
    GIVES(code, gaspi_notify(0, 0, 0, 1, 0, BLOCK));
    GIVES(code, gaspi_write_notify(0, 0, 0, 0, 0, 8, 0, 1, 0, BLOCK));
    GIVES(code, gaspi_read_notify(0, 0, 0, 0, 0, 8, 0, 0, BLOCK));
    GIVES(code, gaspi_write_list(1, &segment, &offset, 0, &segment, &offset, &size, 0, BLOCK));
    GIVES(code, gaspi_read_list(1, &segment, &offset, 0, &segment, &offset, &size, 0, BLOCK));
    GIVES(code, gaspi_write_list_notify(1, &segment, &offset, 0, &segment, &offset, &size, 0, 0, 1, 0, BLOCK));
    GIVES(code, gaspi_read_list_notify(1, &segment, &offset, 0, &segment, &offset, &size, 0, 0, 0, BLOCK));
    GIVES(code, gaspi_wait(0, BLOCK));
    GIVES(code, gaspi_queue_create(&queue, BLOCK));
    GIVES(code, gaspi_queue_delete(0));
    GIVES(code, gaspi_queue_size(0, &number));
    GIVES(code, gaspi_queue_purge(0, BLOCK));
    GIVES(code, gaspi_queue_num(&number));
    GIVES(code, gaspi_notify_waitsome(0, 0, 1, &ids, BLOCK));
    GIVES(code, gaspi_notify_reset(0, 0, &value));
    GIVES(code, gaspi_passive_send(0, 0, 0, 8, BLOCK));
    GIVES(code, gaspi_passive_receive(0, 0, &rank, 8, BLOCK));
    GIVES(code, gaspi_atomic_fetch_add(0, 0, 0, 1, &old, BLOCK));
    GIVES(code, gaspi_atomic_compare_swap(0, 0, 0, 0, 1, &old, BLOCK));
    GIVES(code, gaspi_barrier(ALL, BLOCK));
    GIVES(code, gaspi_allreduce(&one, &result, 1, GASPI_OP_SUM, GASPI_TYPE_LONG, ALL, BLOCK));
    GIVES(code, gaspi_allreduce_user(&one, &result, 1, 8, sum, &flag, ALL, BLOCK));
    /* The profiling names are the same calls. */
    GIVES(code, pgaspi_write(0, 0, 0, 0, 0, 8, 0, BLOCK));
    GIVES(code, pgaspi_queue_purge(0, BLOCK));
    CHECK(rank == 77 && group == 77 && number == 77 && ids == 77 && value == 77 && queue == 77 && old == 77);
    CHECK(result == 77 && states[0] == 77 && ranks[0] == 77 && list[0] == 77 && pointer == &rank && size == 8);
}

/* What the machine is, and on which of its processors a thread runs. */
static void machine(void) {
    cpu_set_t before, one, after;
    gaspi_uchar socket = 255, again = 255;
    struct utsname system;
    char name[17];
    memset(name, 'x', sizeof name);
    CHECK(uname(&system) == 0);
    GIVES(GASPI_ERR_NULLPTR, gaspi_machine_type(NULL));
    OK(gaspi_machine_type(name));
    CHECK(memchr(name, 0, 16) != NULL && strncmp(name, system.machine, 15) == 0 && name[16] == 'x');
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    OK(gaspi_numa_socket(&socket));
    GIVES(GASPI_ERROR, gaspi_set_socket_affinity(255));
    CHECK(sched_getaffinity(0, sizeof after, &after) == 0 && CPU_EQUAL(&one, &after));
    OK(gaspi_set_socket_affinity(socket));
    CHECK(sched_getaffinity(0, sizeof after, &after) == 0);
    CPU_AND(&one, &one, &after);
    CHECK(CPU_COUNT(&one) == 1);
    OK(gaspi_numa_socket(&again));
    CHECK(again == socket);
    /* The only node has all processors. */
    CPU_AND(&after, &after, &before);
    CHECK(access("/sys/devices/system/node/node1", F_OK) == 0 || CPU_EQUAL(&after, &before));
    CHECK(sched_setaffinity(0, sizeof before, &before) == 0);
}

static void every_phase(void) {
    gaspi_config_t config;
    gaspi_number_t number = 0;
    gaspi_size_t size = 0;
    gaspi_atomic_value_t value = 0;
    gaspi_time_t first = -1, second = -1;
    gaspi_cycles_t ticks = 0, later = 0;
    gaspi_float mhz = 0, version = 0;
    gaspi_network_t network;
    gaspi_string_t text = NULL;
    gaspi_uchar socket = 255;
    int code;
    GIVES(GASPI_ERR_NULLPTR, gaspi_config_get(NULL));
    OK(gaspi_config_get(&config));
    OK(gaspi_queue_size_max(&number));
    CHECK(number == config.queue_size_max);
    OK(gaspi_queue_max(&number));
    CHECK(number == 16);
    OK(gaspi_group_max(&number));
    CHECK(number == config.group_max);
    OK(gaspi_segment_max(&number));
    CHECK(number == config.segment_max);
    OK(gaspi_notification_num(&number));
    CHECK(number == config.notification_num);
    OK(gaspi_allreduce_elem_max(&number));
    CHECK(number == 255);
    OK(gaspi_rw_list_elem_max(&number));
    CHECK(number == config.rw_list_elem_max);
    OK(gaspi_allreduce_buf_size(&size));
    CHECK(size == 2040);
    OK(gaspi_transfer_size_max(&size));
    CHECK(size == config.transfer_size_max);
    OK(gaspi_transfer_size_min(&size));
    CHECK(size == 0);
    OK(gaspi_passive_transfer_size_max(&size));
    CHECK(size == config.passive_transfer_size_max);
    OK(gaspi_passive_transfer_size_min(&size));
    CHECK(size == 1);
    OK(gaspi_atomic_max(&value));
    CHECK(value == ULONG_MAX);
    OK(gaspi_network_type(&network));
    CHECK(network == config.network);
    OK(gaspi_build_infrastructure(&number));
    CHECK(number == (gaspi_number_t)config.build_infrastructure);
    OK(gaspi_version(&version));
    CHECK(version > 17.05f && version < 17.15f);
    OK(gaspi_cpu_frequency(&mhz));
    CHECK(mhz > 0);
    OK(gaspi_numa_socket(&socket));
    CHECK(socket < 255);
    CHECK(gaspi_get_system_mem() > 1024 && gaspi_get_mem_in_use() > 4096);
    CHECK(gaspi_get_mem_peak() >= gaspi_get_mem_in_use() / 2);
    OK(gaspi_time_get(&first));
    OK(gaspi_time_ticks(&ticks));
    usleep(2000);
    OK(gaspi_time_get(&second));
    OK(gaspi_time_ticks(&later));
    CHECK(second >= first + 1.5f && later > ticks);
    machine();
    GIVES(GASPI_ERR_NULLPTR, gaspi_time_get(NULL));
    GIVES(GASPI_ERR_NULLPTR, gaspi_version(NULL));
    GIVES(GASPI_ERR_NULLPTR, gaspi_queue_max(NULL));
    GIVES(GASPI_ERR_NULLPTR, gaspi_initialized(NULL));
    GIVES(GASPI_ERR_NULLPTR, gaspi_print_error(GASPI_ERROR, NULL));
    for (code = -3; code < 40; code++) {
        OK(gaspi_print_error((gaspi_return_t)code, &text));
        CHECK(strlen(text) > 5 && strcmp(text, gaspi_error_str((gaspi_return_t)code)) == 0);
        free(text);
    }
}

static void configuration(void) {
    gaspi_config_t config, wrong;
    OK(gaspi_config_get(&config));
    CHECK(config.queue_num == 8 && config.queue_size_max == 1024 && config.notification_num == 65536);
    wrong = config, wrong.queue_num = 17;
    GIVES(GASPI_ERR_CONFIG, gaspi_config_set(wrong));
    wrong = config, wrong.queue_num = 0;
    GIVES(GASPI_ERR_CONFIG, gaspi_config_set(wrong));
    wrong = config, wrong.rw_list_elem_max = 348;
    GIVES(GASPI_ERR_CONFIG, gaspi_config_set(wrong));
    wrong = config, wrong.transfer_size_max = ULONG_MAX;
    GIVES(GASPI_ERR_CONFIG, gaspi_config_set(wrong));
    wrong = config, wrong.build_infrastructure = (gaspi_topology_t)3;
    GIVES(GASPI_ERR_CONFIG, gaspi_config_set(wrong));
    config.queue_num = 3, config.queue_size_max = 4, config.segment_max = 5, config.group_max = 3;
    config.notification_num = 100, config.rw_list_elem_max = 8, config.transfer_size_max = 2048;
    config.passive_transfer_size_max = 1024, config.user_defined = &config;
    OK(gaspi_config_set(config));
    OK(gaspi_config_get(&wrong));
    CHECK(wrong.queue_num == 3 && wrong.user_defined == &config);
}

static void pointers(void) {
    gaspi_segment_id_t segment = 0;
    gaspi_offset_t offset = 0;
    gaspi_size_t size = 8;
    gaspi_number_t groups;
    long one = 1;
    int flag = 0;
    gaspi_return_t null = GASPI_ERR_NULLPTR;
    GIVES(null, gaspi_proc_rank(NULL));
    GIVES(null, gaspi_proc_num(NULL));
    GIVES(null, gaspi_state_vec_get(NULL));
    GIVES(null, gaspi_group_create(NULL));
    GIVES(null, gaspi_group_size(ALL, NULL));
    GIVES(null, gaspi_group_ranks(ALL, NULL));
    GIVES(null, gaspi_group_num(NULL));
    GIVES(null, gaspi_segment_ptr(0, NULL));
    GIVES(null, gaspi_segment_num(NULL));
    GIVES(null, gaspi_segment_list(1, NULL));
    GIVES(null, gaspi_segment_size(0, 0, NULL));
    GIVES(null, gaspi_segment_avail_local(NULL));
    GIVES(null, gaspi_segment_bind(1, NULL, 8, 0));
    GIVES(null, gaspi_segment_use(1, NULL, 8, ALL, BLOCK, 0));
    GIVES(null, gaspi_queue_create(NULL, BLOCK));
    GIVES(null, gaspi_queue_size(0, NULL));
    GIVES(null, gaspi_queue_num(NULL));
    GIVES(null, gaspi_notify_waitsome(0, 0, 1, NULL, BLOCK));
    GIVES(null, gaspi_passive_receive(0, 0, NULL, 8, BLOCK));
    GIVES(null, gaspi_atomic_fetch_add(0, 0, 0, 1, NULL, BLOCK));
    GIVES(null, gaspi_atomic_compare_swap(0, 0, 0, 0, 1, NULL, BLOCK));
    GIVES(null, gaspi_allreduce(NULL, &one, 1, GASPI_OP_SUM, GASPI_TYPE_LONG, ALL, BLOCK));
    GIVES(null, gaspi_allreduce(&one, NULL, 1, GASPI_OP_SUM, GASPI_TYPE_LONG, ALL, BLOCK));
    GIVES(null, gaspi_allreduce_user(&one, &one, 1, 8, NULL, &flag, ALL, BLOCK));
    GIVES(null, gaspi_write_list(1, NULL, &offset, 0, &segment, &offset, &size, 0, BLOCK));
    GIVES(null, gaspi_write_list(1, &segment, NULL, 0, &segment, &offset, &size, 0, BLOCK));
    GIVES(null, gaspi_read_list(1, &segment, &offset, 0, NULL, &offset, &size, 0, BLOCK));
    GIVES(null, gaspi_read_list(1, &segment, &offset, 0, &segment, NULL, &size, 0, BLOCK));
    GIVES(null, gaspi_write_list_notify(1, &segment, &offset, 0, &segment, &offset, NULL, 0, 0, 1, 0, BLOCK));
    OK(gaspi_group_num(&groups));
    CHECK(groups == 1);
    OK(gaspi_queue_num(&groups));
    CHECK(groups == 3);
    OK(gaspi_segment_num(&groups));
    CHECK(groups == 1);
}

/* Every call that posts, with these arguments. */
static void posts(int line, gaspi_return_t code, gaspi_segment_id_t local, gaspi_offset_t at, gaspi_rank_t rank,
                  gaspi_segment_id_t remote, gaspi_offset_t there, gaspi_size_t size, gaspi_queue_id_t queue) {
    const gaspi_return_t got[] = {
        gaspi_write(local, at, rank, remote, there, size, queue, BLOCK),
        gaspi_read(local, at, rank, remote, there, size, queue, BLOCK),
        gaspi_write_notify(local, at, rank, remote, there, size, 1, 1, queue, BLOCK),
        gaspi_read_notify(local, at, rank, remote, there, size, 1, queue, BLOCK),
        gaspi_write_list(1, &local, &at, rank, &remote, &there, &size, queue, BLOCK),
        gaspi_read_list(1, &local, &at, rank, &remote, &there, &size, queue, BLOCK),
        gaspi_write_list_notify(1, &local, &at, rank, &remote, &there, &size, 0, 1, 1, queue, BLOCK),
        gaspi_read_list_notify(1, &local, &at, rank, &remote, &there, &size, 0, 1, queue, BLOCK),
    };
    gaspi_number_t i, open;
    for (i = 0; i < sizeof got / sizeof *got; i++)
        if (got[i] != code) {
            fprintf(stderr, "call %u should give %d\n", i, (int)code);
            failed(line, "a posting", got[i]);
        }
    OK(gaspi_queue_size(0, &open));
    CHECK(open == 0);
}

static void ranges(void) {
    gaspi_notification_id_t id = 77;
    gaspi_notification_t value;
    gaspi_segment_id_t segments[9] = {0};
    gaspi_offset_t offsets[9] = {0};
    gaspi_size_t sizes[9] = {0};
    gaspi_atomic_value_t old = 77;
    gaspi_queue_id_t gone = 77;
    gaspi_number_t i;
    /* The number of a queue that was deleted. */
    OK(gaspi_queue_create(&gone, BLOCK));
    CHECK(gone == 3);
    OK(gaspi_write(0, 0, me, 0, 8, 8, gone, BLOCK));
    OK(gaspi_queue_delete(gone));
    posts(__LINE__, GASPI_ERR_INV_QUEUE, 0, 0, next, 0, 0, 8, gone);
    GIVES(GASPI_ERR_INV_QUEUE, gaspi_notify(0, next, 1, 1, gone, BLOCK));
    GIVES(GASPI_ERR_INV_QUEUE, gaspi_queue_size(gone, &i));
    GIVES(GASPI_ERR_INV_QUEUE, gaspi_queue_purge(gone, BLOCK));
    GIVES(GASPI_ERR_INV_QUEUE, gaspi_queue_delete(gone));
    posts(__LINE__, GASPI_ERR_INV_RANK, 0, 0, n, 0, 0, 8, 0);
    posts(__LINE__, GASPI_ERR_INV_RANK, 0, 0, 65535, 0, 0, 8, 0);
    posts(__LINE__, GASPI_ERR_INV_QUEUE, 0, 0, next, 0, 0, 8, 3);
    posts(__LINE__, GASPI_ERR_INV_QUEUE, 0, 0, next, 0, 0, 8, 200);
    posts(__LINE__, GASPI_ERR_INV_SEG, 200, 0, next, 0, 0, 8, 0);
    posts(__LINE__, GASPI_ERR_INV_SEG, 0, 0, next, 200, 0, 8, 0);
    posts(__LINE__, GASPI_ERR_INV_LOC_OFF, 0, SIZE, next, 0, 0, 8, 0);
    posts(__LINE__, GASPI_ERR_INV_LOC_OFF, 0, SIZE - 7, next, 0, 0, 8, 0);
    posts(__LINE__, GASPI_ERR_INV_LOC_OFF, 0, ULONG_MAX, next, 0, 0, 1, 0);
    posts(__LINE__, GASPI_ERR_INV_LOC_OFF, 0, ULONG_MAX - 7, next, 0, 0, 16, 0);
    posts(__LINE__, GASPI_ERR_INV_REM_OFF, 0, 0, next, 0, SIZE, 8, 0);
    posts(__LINE__, GASPI_ERR_INV_REM_OFF, 0, 0, next, 0, SIZE - 7, 8, 0);
    posts(__LINE__, GASPI_ERR_INV_REM_OFF, 0, 0, next, 0, ULONG_MAX, 1, 0);
    posts(__LINE__, GASPI_ERR_INV_REM_OFF, 0, 0, next, 0, ULONG_MAX - 7, 16, 0);
    posts(__LINE__, GASPI_ERR_INV_COMMSIZE, 0, 0, next, 0, 0, 2049, 0);
    posts(__LINE__, GASPI_ERR_INV_LOC_OFF, 0, 0, next, 0, 0, ULONG_MAX, 0);
    GIVES(GASPI_ERR_INV_NUM, gaspi_write_list(0, segments, offsets, next, segments, offsets, sizes, 0, BLOCK));
    GIVES(GASPI_ERR_INV_NUM, gaspi_read_list(9, segments, offsets, next, segments, offsets, sizes, 0, BLOCK));
    GIVES(GASPI_ERR_INV_NUM, gaspi_write_list(UINT_MAX, segments, offsets, next, segments, offsets, sizes, 0, BLOCK));
    GIVES(GASPI_ERR_INV_NOTIF_VAL, gaspi_notify(0, next, 1, 0, 0, BLOCK));
    GIVES(GASPI_ERR_INV_NOTIF_VAL, gaspi_write_notify(0, 0, next, 0, 8, 8, 1, 0, 0, BLOCK));
    GIVES(GASPI_ERR_INV_NOTIF_ID, gaspi_notify(0, next, 100, 1, 0, BLOCK));
    GIVES(GASPI_ERR_INV_NOTIF_ID, gaspi_notify(0, next, UINT_MAX, 1, 0, BLOCK));
    GIVES(GASPI_ERR_INV_NOTIF_ID, gaspi_notify_reset(0, 100, &value));
    GIVES(GASPI_ERR_INV_NOTIF_ID, gaspi_notify_waitsome(0, 99, 2, &id, BLOCK));
    GIVES(GASPI_ERR_INV_NOTIF_ID, gaspi_notify_waitsome(0, 1, UINT_MAX, &id, BLOCK));
    GIVES(GASPI_ERR_INV_SEG, gaspi_notify_waitsome(200, 0, 1, &id, BLOCK));
    OK(gaspi_notify_waitsome(0, 0, 0, &id, BLOCK));
    GIVES(GASPI_TIMEOUT, gaspi_notify_waitsome(0, 0, 100, &id, 5));
    CHECK(id == 77);
    OK(gaspi_notify_reset(0, 1, NULL));
    GIVES(GASPI_ERR_INV_QUEUE, gaspi_wait(3, BLOCK));
    GIVES(GASPI_ERR_INV_QUEUE, gaspi_queue_delete(200));
    GIVES(GASPI_ERR_INV_QUEUE, gaspi_queue_size(16, &i));
    GIVES(GASPI_ERR_INV_QUEUE, gaspi_queue_purge(255, BLOCK));
    GIVES(GASPI_ERR_UNALIGN_OFF, gaspi_atomic_fetch_add(0, 4, next, 1, &old, BLOCK));
    GIVES(GASPI_ERR_INV_REM_OFF, gaspi_atomic_fetch_add(0, SIZE, next, 1, &old, BLOCK));
    GIVES(GASPI_ERR_INV_RANK, gaspi_atomic_compare_swap(0, 0, n, 0, 1, &old, BLOCK));
    GIVES(GASPI_ERR_INV_SEG, gaspi_atomic_compare_swap(200, 0, next, 0, 1, &old, BLOCK));
    CHECK(old == 77);
    GIVES(GASPI_ERR_INV_COMMSIZE, gaspi_passive_send(0, 0, next, 1025, BLOCK));
    GIVES(GASPI_ERR_INV_LOC_OFF, gaspi_passive_send(0, ULONG_MAX, next, 8, BLOCK));
    GIVES(GASPI_ERR_INV_RANK, gaspi_proc_ping(n, BLOCK));
    GIVES(GASPI_ERR_INV_RANK, gaspi_connect(n, BLOCK));
    GIVES(GASPI_ERR_INV_RANK, gaspi_proc_kill(me, BLOCK));
    GIVES(GASPI_ERR_INV_RANK, gaspi_proc_kill(n, BLOCK));
    /* A queue that is full takes requests again after a wait. */
    for (i = 0; i < 4; i++)
        OK(gaspi_write(0, 0, me, 0, 8, 8, 2, BLOCK));
    GIVES(GASPI_QUEUE_FULL, gaspi_write(0, 0, me, 0, 8, 8, 2, BLOCK));
    OK(gaspi_wait(2, BLOCK));
    OK(gaspi_write(0, 0, me, 0, 8, 8, 2, BLOCK));
    OK(gaspi_wait(2, BLOCK));
}

static void segments(void) {
    gaspi_segment_id_t id, list[8];
    gaspi_size_t size = 0;
    GIVES(GASPI_ERR_INV_SEGSIZE, gaspi_segment_alloc(1, 0, GASPI_ALLOC_DEFAULT));
    GIVES(GASPI_ERR_INV_SEGSIZE, gaspi_segment_alloc(1, ULONG_MAX, GASPI_ALLOC_DEFAULT));
    GIVES(GASPI_ERR_MEMALLOC, gaspi_segment_alloc(1, 1ul << 46, GASPI_ALLOC_DEFAULT));
    GIVES(GASPI_ERR_INV_SEG, gaspi_segment_alloc(0, 8, GASPI_ALLOC_DEFAULT));
    GIVES(GASPI_ERR_INV_SEG, gaspi_segment_delete(1));
    GIVES(GASPI_ERR_INV_SEG, gaspi_segment_register(1, 0, BLOCK));
    GIVES(GASPI_ERR_INV_RANK, gaspi_segment_register(0, n, BLOCK));
    GIVES(GASPI_ERR_INV_GROUP, gaspi_segment_create(1, 8, 9, BLOCK, GASPI_ALLOC_DEFAULT));
    for (id = 1; id < 5; id++) {
        gaspi_segment_id_t free = 99;
        OK(gaspi_segment_avail_local(&free));
        CHECK(free == id);
        OK(gaspi_segment_alloc(id, 8, GASPI_MEM_INITIALIZED));
    }
    GIVES(GASPI_ERR_MANY_SEG, gaspi_segment_alloc(9, 8, GASPI_ALLOC_DEFAULT));
    GIVES(GASPI_ERR_MANY_SEG, gaspi_segment_avail_local(&id));
    GIVES(GASPI_ERR_INV_NUM, gaspi_segment_list(4, list));
    OK(gaspi_segment_list(5, list));
    CHECK(list[0] == 0 && list[4] == 4);
    OK(gaspi_segment_size(4, me, &size));
    CHECK(size == 8);
    OK(gaspi_segment_size(0, next, &size));
    CHECK(size == SIZE);
    GIVES(GASPI_ERR_INV_SEG, gaspi_segment_size(9, me, &size));
    GIVES(GASPI_ERR_INV_SEG, gaspi_segment_size(9, next, &size));
    GIVES(GASPI_ERR_INV_RANK, gaspi_segment_size(0, n, &size));
    for (id = 1; id < 5; id++)
        OK(gaspi_segment_delete(id));
}

static void groups(void) {
    gaspi_group_t group = 99, other = 99;
    gaspi_number_t size;
    gaspi_rank_t rank, ranks[64];
    long in[256] = {1}, out[256] = {0};
    int fails = 0;
    GIVES(GASPI_ERR_INV_GROUP, gaspi_group_delete(ALL));
    GIVES(GASPI_ERR_INV_GROUP, gaspi_group_delete(7));
    GIVES(GASPI_ERR_INV_GROUP, gaspi_group_add(7, 0));
    GIVES(GASPI_ERR_INV_GROUP, gaspi_group_add(ALL, 0));
    GIVES(GASPI_ERR_INV_GROUP, gaspi_group_size(7, &size));
    GIVES(GASPI_ERR_INV_GROUP, gaspi_group_commit(7, BLOCK));
    OK(gaspi_group_commit(ALL, BLOCK));
    OK(gaspi_group_create(&group));
    OK(gaspi_group_create(&other));
    GIVES(GASPI_ERR_MANY_GRP, gaspi_group_create(&other));
    GIVES(GASPI_ERR_INV_RANK, gaspi_group_add(group, n));
    for (rank = n; rank-- > 0;)
        OK(gaspi_group_add(group, rank));
    GIVES(GASPI_ERR_INV_RANK, gaspi_group_add(group, 0));
    GIVES(GASPI_ERR_INV_GROUP, gaspi_barrier(group, BLOCK));
    GIVES(GASPI_ERR_INV_GROUP, gaspi_barrier(other, BLOCK));
    OK(gaspi_group_commit(group, BLOCK));
    OK(gaspi_group_size(group, &size));
    CHECK(size == n);
    OK(gaspi_group_ranks(group, ranks));
    for (rank = 0; rank < n; rank++)
        CHECK(ranks[rank] == rank);
    GIVES(GASPI_ERR_INV_NUM, gaspi_allreduce(in, out, 0, GASPI_OP_SUM, GASPI_TYPE_LONG, group, BLOCK));
    GIVES(GASPI_ERR_INV_NUM, gaspi_allreduce(in, out, 256, GASPI_OP_SUM, GASPI_TYPE_LONG, group, BLOCK));
    GIVES(GASPI_ERR_INV_NUM, gaspi_allreduce(in, out, UINT_MAX, GASPI_OP_SUM, GASPI_TYPE_LONG, group, BLOCK));
    GIVES(GASPI_ERROR, gaspi_allreduce(in, out, 1, (gaspi_operation_t)3, GASPI_TYPE_LONG, group, BLOCK));
    GIVES(GASPI_ERROR, gaspi_allreduce(in, out, 1, GASPI_OP_SUM, (gaspi_datatype_t)6, group, BLOCK));
    GIVES(GASPI_ERR_INV_NUM, gaspi_allreduce_user(in, out, 0, 8, sum, &fails, group, BLOCK));
    GIVES(GASPI_ERR_INV_SIZE, gaspi_allreduce_user(in, out, 255, 9, sum, &fails, group, BLOCK));
    GIVES(GASPI_ERR_INV_SIZE, gaspi_allreduce_user(in, out, 1, ULONG_MAX, sum, &fails, group, BLOCK));
    GIVES(GASPI_ERR_INV_SIZE, gaspi_allreduce_user(in, out, 2, 1ul << 63, sum, &fails, group, BLOCK));
    GIVES(GASPI_ERR_INV_SIZE, gaspi_allreduce_user(in, out, 1, 0, sum, &fails, group, BLOCK));
    CHECK(out[0] == 0);
    in[254] = me;
    OK(gaspi_allreduce_user(in, out, 255, 8, sum, &fails, group, BLOCK));
    CHECK(out[0] == n && out[1] == 0 && out[254] == n * (n - 1) / 2);
    OK(gaspi_allreduce(in, in, 255, GASPI_OP_MAX, GASPI_TYPE_LONG, group, BLOCK));
    CHECK(in[0] == 1 && in[254] == n - 1);
    fails = 1;
    if (n > 1)
        GIVES(GASPI_ERROR, gaspi_allreduce_user(in, out, 1, 8, sum, &fails, group, BLOCK));
    OK(gaspi_group_delete(group));
    OK(gaspi_group_delete(other));
}

/* A collective call that rank 0 has not entered has run into its time limit: rank 0 is told. */
static void begun(gaspi_return_t code) {
    CHECK(code == GASPI_TIMEOUT);
    OK(gaspi_notify(0, 0, (gaspi_notification_id_t)(40 + me), 1, 0, BLOCK));
}

/* Rank 0 is the last to enter a collective call. */
static void all_have_begun(void) {
    gaspi_rank_t rank;
    for (rank = 1; rank < n; rank++)
        CHECK(await(0, (gaspi_notification_id_t)(40 + rank)) == 1);
}

/* Calls that run into their time limits are resumed: one barrier, and one reduction of what the first call got. */
static void resumed(void) {
    long in = me, out = -1;
    gaspi_return_t code;
    OK(gaspi_barrier(ALL, BLOCK));
    if (me == 0)
        all_have_begun();
    else
        begun(gaspi_barrier(ALL, GASPI_TEST));
    while ((code = gaspi_barrier(ALL, GASPI_TEST)) == GASPI_TIMEOUT)
        ;
    OK(code);
    if (me == 0)
        all_have_begun();
    else
        begun(gaspi_allreduce(&in, &out, 1, GASPI_OP_SUM, GASPI_TYPE_LONG, ALL, GASPI_TEST)), in = 1000;
    while ((code = gaspi_allreduce(&in, &out, 1, GASPI_OP_SUM, GASPI_TYPE_LONG, ALL, 1)) == GASPI_TIMEOUT)
        ;
    OK(code);
    CHECK(out == n * (n - 1) / 2);
    OK(gaspi_wait(0, BLOCK));
}

/* Whichever thread comes second is refused. */
static void *in_barrier(void *argument) {
    gaspi_return_t code;
    while ((code = gaspi_barrier(ALL, BLOCK)) == GASPI_ERR_ACTIVE_COLL)
        ;
    OK(code);
    return argument;
}

/* Two threads of a rank in one barrier: the second is refused. */
static void active(void) {
    pthread_t thread;
    gaspi_return_t code;
    if (n == 1)
        return;
    OK(gaspi_barrier(ALL, BLOCK));
    if (me == 0) {
        CHECK(pthread_create(&thread, NULL, in_barrier, NULL) == 0);
        /* Before the other thread is in, it is this one that has begun the barrier, which the other one goes on with. */
        while ((code = gaspi_barrier(ALL, GASPI_TEST)) == GASPI_TIMEOUT)
            usleep(1000);
        CHECK(code == GASPI_ERR_ACTIVE_COLL);
        OK(gaspi_notify(0, 1, 50, 1, 0, BLOCK));
        CHECK(pthread_join(thread, NULL) == 0);
    } else {
        if (me == 1)
            CHECK(await(0, 50) == 1);
        OK(gaspi_barrier(ALL, BLOCK));
    }
    OK(gaspi_wait(0, BLOCK));
}

static void child(void) {
    int status = -1;
    gaspi_pointer_t start = NULL;
    char before;
    pid_t made = fork();
    CHECK(made >= 0);
    if (made == 0) {
        all_are(GASPI_ERR_NOINIT);
        GIVES(GASPI_ERR_NOINIT, gaspi_proc_init(BLOCK));
        _exit(7);
    }
    CHECK(waitpid(made, &status, 0) == made && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    /* Its writes are not the rank's. It ends without its words, and without an image of its memory. */
    OK(gaspi_segment_ptr(0, &start));
    before = *(volatile char *)start;
    made = fork();
    CHECK(made >= 0);
    if (made == 0) {
        prctl(PR_SET_DUMPABLE, 0);
        close(2);
        *(volatile char *)start = (char)(before + 1);
        _exit(8);
    }
    CHECK(waitpid(made, &status, 0) == made && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(*(volatile char *)start == before);
}

static void statistics(void) {
    gaspi_number_t most = 0, level = 0;
    gaspi_ulong value = 99;
    gaspi_string_t name = NULL, words = NULL;
    gaspi_statistic_argument_t argument;
    gaspi_statistic_counter_t counter;
    OK(gaspi_statistic_counter_max(&most));
    GIVES(GASPI_ERR_INV_NUM, gaspi_statistic_counter_get(most, 0, &value));
    GIVES(GASPI_ERR_INV_NUM, gaspi_statistic_counter_reset(most));
    GIVES(GASPI_ERR_NULLPTR, gaspi_statistic_counter_get(0, 0, NULL));
    for (counter = 0; counter < most; counter++) {
        OK(gaspi_statistic_counter_info(counter, &argument, &name, &words, &level));
        CHECK(strlen(name) > 3 && strlen(words) > 10 && level == 1 && argument == GASPI_STATISTIC_ARGUMENT_NONE);
        OK(gaspi_statistic_counter_get(counter, 0, &value));
        CHECK(value == 0);
    }
    OK(gaspi_statistic_verbosity_level(1));
    OK(gaspi_write(0, 0, me, 0, 8, 24, 0, BLOCK));
    OK(gaspi_wait(0, BLOCK));
    OK(gaspi_statistic_counter_get(0, 0, &value));
    CHECK(value == 1);
    OK(gaspi_statistic_counter_get(3, 0, &value));
    CHECK(value == 24);
    OK(gaspi_statistic_counter_reset(3));
    OK(gaspi_statistic_counter_get(3, 0, &value));
    CHECK(value == 0);
    OK(gaspi_statistic_verbosity_level(0));
}

/* A folder that rank 0 makes: how ranks tell something while no call of GASPI works. Every rank knows the end of its name. */
enum { END = 6 };
static char folder[] = "/tmp/bellwether-misuse-XXXXXX";

static void share_folder(void) {
    char *end = folder + strlen(folder) - END;
    long mine = 0, all = 0;
    if (me == 0) {
        CHECK(mkdtemp(folder) != NULL);
        memcpy(&mine, end, END);
    }
    OK(gaspi_allreduce(&mine, &all, 1, GASPI_OP_SUM, GASPI_TYPE_LONG, ALL, BLOCK));
    memcpy(end, &all, END);
}

/* The file of a rank. */
static const char *file_of(gaspi_rank_t rank) {
    static char path[64];
    snprintf(path, sizeof path, "%s/%u", folder, (unsigned)rank);
    return path;
}

int main(int argc, char **argv) {
    gaspi_number_t is = 9;
    gaspi_config_t config;
    gaspi_rank_t local = 99, locals = 99;
    gaspi_return_t code;
    gaspi_rank_t rank;
    int pieces = 0;
    alarm(90);
    if (argc > 2 && strcmp(argv[1], "start") == 0) {
        gaspi_string_t text = NULL;
        const gaspi_return_t code = gaspi_proc_init(BLOCK);
        CHECK(code == (gaspi_return_t)atoi(argv[2]));
        OK(gaspi_print_error(code, &text));
        CHECK(strcmp(gaspi_error_str(code), text) == 0);
        printf("start: %s\n", text);
        free(text);
        return 0;
    }
    OK(gaspi_initialized(&is));
    CHECK(is == 0);
    all_are(GASPI_ERR_NOINIT);
    every_phase();
    configuration();
    start();
    OK(gaspi_initialized(&is));
    CHECK(is == 1);
    OK(gaspi_config_get(&config));
    GIVES(GASPI_ERR_INITED, gaspi_config_set(config));
    GIVES(GASPI_ERR_INITED, gaspi_proc_init(BLOCK));
    OK(gaspi_proc_local_rank(&local));
    OK(gaspi_proc_local_num(&locals));
    CHECK(local == me && locals == n);
    every_phase();
    make(0, SIZE);
    OK(gaspi_barrier(ALL, BLOCK));
    pointers();
    statistics();
    OK(gaspi_barrier(ALL, BLOCK));
    ranges();
    segments();
    groups();
    resumed();
    active();
    child();
    share_folder();
    OK(gaspi_barrier(ALL, BLOCK));
    OK(gaspi_proc_term(BLOCK));
    all_are(GASPI_ERR_NOINIT);
    every_phase();
    OK(gaspi_initialized(&is));
    CHECK(is == 0);
    OK(gaspi_config_set(config));
    /* A second life cycle, with the configuration of the first, which is begun in pieces: rank 0 comes when each other one has begun. */
    for (rank = 1; rank < n && me == 0; rank++) {
        while (access(file_of(rank), F_OK) != 0)
            usleep(1000);
        CHECK(unlink(file_of(rank)) == 0);
    }
    CHECK(me != 0 || rmdir(folder) == 0);
    while ((code = gaspi_proc_init(pieces ? 1 : GASPI_TEST)) == GASPI_TIMEOUT && pieces++ < 2) {
        GIVES(GASPI_ERR_INITED, gaspi_config_set(config));
        all_are(GASPI_ERR_NOINIT);
        if (pieces == 1 && me != 0)
            CHECK(fclose(fopen(file_of(me), "w")) == 0);
    }
    CHECK(me == 0 || pieces > 0);
    if (code == GASPI_TIMEOUT)
        start();
    else
        OK(code);
    make(0, 8);
    if (me == 0) {
        gaspi_printf("printed %d\n", 42);
        gaspi_printf_to(0, "printed to %d\n", 0);
        gaspi_printf_to(n, "printed to nobody\n");
        gaspi_print_affinity_mask();
    }
    finish("misuse");
    return 0;
}
