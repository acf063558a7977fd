/* What the GASPI headers declare: numbers, fields, types of calls. Compiles as C99 and as C++98, or not. */
#include <GASPI.h>
#include <GASPI_Ext.h>
#include <GASPI_Threads.h>
#include <PGASPI.h>

#include <stddef.h>

#define IS(name, condition) typedef char is_##name[(condition) ? 1 : -1]

IS(rank, sizeof(gaspi_rank_t) == 2 && (gaspi_rank_t)-1 > 0);
IS(ids, sizeof(gaspi_group_t) == 1 && sizeof(gaspi_segment_id_t) == 1 && sizeof(gaspi_queue_id_t) == 1);
IS(notes, sizeof(gaspi_notification_id_t) == 4 && sizeof(gaspi_notification_t) == 4 && sizeof(gaspi_number_t) == 4);
IS(words, sizeof(gaspi_atomic_value_t) == 8 && sizeof(gaspi_offset_t) == 8 && sizeof(gaspi_size_t) == 8);
IS(times, sizeof(gaspi_timeout_t) == 8 && sizeof(gaspi_time_t) == 4 && sizeof(gaspi_cycles_t) == 8);
IS(state, sizeof(gaspi_state_t) == 1 && GASPI_STATE_HEALTHY == 0 && GASPI_STATE_CORRUPT == 1);
IS(limits, GASPI_TEST == 0 && GASPI_BLOCK == ~0ul && GASPI_GROUP_ALL == 0);
IS(codes, GASPI_ERROR == -1 && GASPI_SUCCESS == 0 && GASPI_TIMEOUT == 1 && sizeof(gaspi_return_t) == sizeof(int));
IS(operations, GASPI_OP_MIN == 0 && GASPI_OP_MAX == 1 && GASPI_OP_SUM == 2);
IS(types, GASPI_TYPE_INT == 0 && GASPI_TYPE_UINT == 1 && GASPI_TYPE_FLOAT == 2 && GASPI_TYPE_DOUBLE == 3);
IS(long_types, GASPI_TYPE_LONG == 4 && GASPI_TYPE_ULONG == 5);

/* The places of the fields, which `settings_have_the_headers_fields` in settings.rs has too. */
IS(config_1, offsetof(gaspi_config_t, sn_timeout) == 24 && offsetof(gaspi_config_t, dev_config) == 32);
IS(config_2, offsetof(gaspi_config_t, network) == 52 && offsetof(gaspi_config_t, queue_num) == 60);
IS(config_3, offsetof(gaspi_config_t, transfer_size_max) == 72);
IS(config_4, offsetof(gaspi_config_t, passive_transfer_size_max) == 88);
IS(config_5, offsetof(gaspi_config_t, allreduce_buf_size) == 96);
IS(config_6, offsetof(gaspi_config_t, build_infrastructure) == 112);
IS(config_7, offsetof(gaspi_config_t, user_defined) == 120 && sizeof(gaspi_config_t) == 128);

typedef gaspi_return_t (*write_t)(gaspi_segment_id_t, gaspi_offset_t, gaspi_rank_t, gaspi_segment_id_t, gaspi_offset_t,
                                  gaspi_size_t, gaspi_queue_id_t, gaspi_timeout_t);
typedef gaspi_return_t (*create_t)(gaspi_queue_id_t *, gaspi_timeout_t);
typedef gaspi_return_t (*waitsome_t)(gaspi_segment_id_t, gaspi_notification_id_t, gaspi_number_t,
                                     gaspi_notification_id_t *, gaspi_timeout_t);

write_t write_call = gaspi_write, profiled_write = pgaspi_write;
create_t create = gaspi_queue_create, profiled_create = pgaspi_queue_create;
gaspi_return_t (*end)(gaspi_queue_id_t) = gaspi_queue_delete;
gaspi_return_t (*purge)(gaspi_queue_id_t, gaspi_timeout_t) = pgaspi_queue_purge;
waitsome_t waitsome = gaspi_notify_waitsome;
gaspi_return_t (*set)(gaspi_config_t) = gaspi_config_set;
gaspi_return_t (*states)(gaspi_state_vector_t) = gaspi_state_vec_get;
gaspi_string_t (*text)(gaspi_return_t) = gaspi_error_str;
gaspi_return_t (*threads)(void *(*)(void *), void *) = gaspi_threads_run;

int printing(void);
int printing(void) {
    gaspi_printf("%d\n", 1);
    return GASPI_MEM_INITIALIZED == 1 && GASPI_ALLOC_DEFAULT == GASPI_MEM_UNINITIALIZED;
}
