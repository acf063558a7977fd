/*
 * GASPI: segments, one-sided writes and reads on queues, notifications, groups, and a time limit on everything that can wait.
 *
 * A rank is one process of a job, numbered from 0. Start the job with `bellwether run -n 4 ./program`, with `BELLWETHER_RANKS=4
 * ./program`, or with mpirun or srun, which need no MPI in the library. The first gaspi_proc_init joins it.
 *
 * Source of the names: the GASPI specification 17.1 and the interface of GPI-2 1.5, whose types, numbers and fields these are. Layouts
 * are this library's, so programs are compiled anew.
 *
 * Results: every call returns GASPI_SUCCESS, or a code whose text gaspi_error_str has. Arguments are always checked; after a code that
 * names an argument nothing was posted or changed. Outside of the working phase, which gaspi_proc_init begins and gaspi_proc_term ends,
 * calls return GASPI_ERR_NOINIT, unless they say otherwise. A null pointer is GASPI_ERR_NULLPTR where a result is to be stored.
 *
 * Time limits are milliseconds, GASPI_TEST or GASPI_BLOCK. After GASPI_TIMEOUT the same call with the same arguments goes on with what
 * was begun, which takes effect once; a post begins anew. Posting waits for no room: what a network does not take now is posted later. Two
 * kinds of posts wait, within the limit but for 100 ms at least: over a network the first request of a queue to a segment, which looks it up,
 * and requests to memory of the program (gaspi_segment_bind) of a rank on this host if the kernel allows no cross-memory attach, which are
 * messages. After GASPI_TIMEOUT of such messages a part of the bytes may be moved, and no notification is changed; the next call moves all
 * of them, also over what the target has changed there since.
 * gaspi_segment_delete and gaspi_queue_delete have no limit: they wait for a rank that is stopped and has used the segment, and for the
 * requests of the queue; calls of other threads go on. gaspi_wait on a queue that another thread posts to all the time may not end.
 *
 * Lost ranks: posting to a rank that is lost succeeds. The next gaspi_wait on that queue returns GASPI_ERROR, and gaspi_state_vec_get
 * names the rank. If a request was in flight when its target was lost, every gaspi_wait on the queue fails until gaspi_queue_purge.
 *
 * A gaspi_notify_waitsome over more than 64 notifications with GASPI_TEST may miss one that is just being set.
 *
 * Threads: every call may be made from every thread of the process, but no thread posts while another calls gaspi_proc_term. A forked
 * child is no rank: its calls return GASPI_ERR_NOINIT, and a write to the memory of a segment of gaspi_segment_create ends it with SIGSEGV.
 *
 * Profiling: every call that returns a code has a second name, pgaspi_ in place of gaspi_. A program that defines gaspi_write itself
 * and calls pgaspi_write in it sees its own writes. That needs the shared library, or an archive with weak names: one that was built with
 * the linker LLD, as rustc's on x86-64.
 *
 * A process that has called gaspi_proc_term and exits waits there until all ranks do. One that exits in the working phase is lost to
 * the others, as one that is killed.
 */
#ifndef BELLWETHER_GASPI_H
#define BELLWETHER_GASPI_H

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the specification, which gaspi_version has as one number. */
#define GASPI_MAJOR_VERSION (17)
#define GASPI_MINOR_VERSION (1)
#define GASPI_REVISION (0)

/* Limits of this library. */
#define GASPI_MAX_GROUPS (32)
#define GASPI_MAX_MSEGS (255)
#define GASPI_MAX_QP (16)
#define GASPI_MAX_QSIZE (4096)
#define GASPI_MAX_NOTIFICATION (65536)
#define GASPI_MAX_TSIZE_C (1ul << 30)
#define GASPI_MAX_TSIZE_P (65535ul)

/* Types */

typedef char gaspi_char;
typedef unsigned char gaspi_uchar;
typedef short gaspi_short;
typedef unsigned short gaspi_ushort;
typedef int gaspi_int;
typedef unsigned int gaspi_uint;
typedef long gaspi_long;
typedef unsigned long gaspi_ulong;
typedef float gaspi_float;
typedef double gaspi_double;

typedef unsigned long gaspi_timeout_t;
typedef unsigned short gaspi_rank_t;
typedef unsigned char gaspi_group_t;
typedef unsigned int gaspi_number_t;
typedef void *gaspi_pointer_t;
typedef const void *gaspi_const_pointer_t;
typedef void *gaspi_reduce_state_t;
typedef unsigned char gaspi_queue_id_t;
typedef unsigned long gaspi_size_t;
typedef unsigned char gaspi_segment_id_t;
typedef unsigned long gaspi_offset_t;
typedef unsigned long gaspi_atomic_value_t;
typedef float gaspi_time_t;
typedef unsigned long gaspi_cycles_t;
typedef unsigned int gaspi_notification_id_t;
typedef unsigned int gaspi_notification_t;
typedef unsigned int gaspi_statistic_counter_t;
typedef char *gaspi_string_t;
typedef int gaspi_memory_description_t;

/* The group of all ranks, committed from the start. */
#define GASPI_GROUP_ALL ((gaspi_group_t)0)
/* Waits as long as it takes. */
#define GASPI_BLOCK ((gaspi_timeout_t)~0ul)
/* Makes progress once. */
#define GASPI_TEST ((gaspi_timeout_t)0)

/*
 * No call returns GASPI_ERR_SN_PORT, since ranks agree on ports themselves, nor GASPI_ERR_DEVICE: a network that fails loses ranks, and
 * calls that need them return GASPI_ERROR.
 */
typedef enum {
    GASPI_ERROR = -1,
    GASPI_SUCCESS = 0,
    GASPI_TIMEOUT = 1,
    GASPI_ERR_EMFILE = 2,
    GASPI_ERR_ENV = 3,
    GASPI_ERR_SN_PORT = 4,
    GASPI_ERR_CONFIG = 5,
    GASPI_ERR_NOINIT = 6,
    GASPI_ERR_INITED = 7,
    GASPI_ERR_NULLPTR = 8,
    GASPI_ERR_INV_SEGSIZE = 9,
    GASPI_ERR_INV_SEG = 10,
    GASPI_ERR_INV_GROUP = 11,
    GASPI_ERR_INV_RANK = 12,
    GASPI_ERR_INV_QUEUE = 13,
    GASPI_ERR_INV_LOC_OFF = 14,
    GASPI_ERR_INV_REM_OFF = 15,
    GASPI_ERR_INV_COMMSIZE = 16,
    GASPI_ERR_INV_NOTIF_VAL = 17,
    GASPI_ERR_INV_NOTIF_ID = 18,
    GASPI_ERR_INV_NUM = 19,
    GASPI_ERR_INV_SIZE = 20,
    GASPI_ERR_MANY_SEG = 21,
    GASPI_ERR_MANY_GRP = 22,
    GASPI_QUEUE_FULL = 23,
    GASPI_ERR_UNALIGN_OFF = 24,
    GASPI_ERR_ACTIVE_COLL = 25,
    GASPI_ERR_DEVICE = 26,
    GASPI_ERR_SN = 27,
    GASPI_ERR_MEMALLOC = 28
} gaspi_return_t;

/* The name of GASPI_QUEUE_FULL before GPI-2 1.4. */
#define GASPI_ERR_MANY_Q_REQS GASPI_QUEUE_FULL

typedef enum { GASPI_OP_MIN = 0, GASPI_OP_MAX = 1, GASPI_OP_SUM = 2 } gaspi_operation_t;

/* Elements of gaspi_allreduce: 4 bytes for int, unsigned int and float, 8 for the others. */
typedef enum {
    GASPI_TYPE_INT = 0,
    GASPI_TYPE_UINT = 1,
    GASPI_TYPE_FLOAT = 2,
    GASPI_TYPE_DOUBLE = 3,
    GASPI_TYPE_LONG = 4,
    GASPI_TYPE_ULONG = 5
} gaspi_datatype_t;

typedef enum {
    GASPI_IB = 0,
    GASPI_ROCE = 1,
    GASPI_ETHERNET = 2,
    GASPI_GEMINI = 3,
    GASPI_ARIES = 4
} gaspi_network_t;

/* How memory of a segment begins. Here it is zeroed in every case. */
typedef enum {
    GASPI_MEM_UNINITIALIZED = 0,
    GASPI_MEM_INITIALIZED = 1,
    GASPI_ALLOC_DEFAULT = GASPI_MEM_UNINITIALIZED
} gaspi_alloc_t;

/* What a rank knows of another one. One byte, as programs allocate the vector. */
typedef unsigned char gaspi_state_t;
typedef gaspi_state_t *gaspi_state_vector_t;
enum { GASPI_STATE_HEALTHY = 0, GASPI_STATE_CORRUPT = 1 };

typedef enum { GASPI_STATISTIC_ARGUMENT_NONE = 0, GASPI_STATISTIC_ARGUMENT_RANK = 1 } gaspi_statistic_argument_t;

/* Paths are made by the first operation that needs them, in every case. */
typedef enum {
    GASPI_TOPOLOGY_NONE = 0,
    GASPI_TOPOLOGY_STATIC = 1,
    GASPI_TOPOLOGY_DYNAMIC = 2
} gaspi_topology_t;

/* Kept for programs that set it; nothing here depends on it. */
typedef struct {
    gaspi_network_t network_type;
    struct {
        struct {
            gaspi_int netdev_id;
            gaspi_uint mtu;
            gaspi_uint port_check;
        } ib;
        struct {
            gaspi_uint port;
        } tcp;
    } params;
} gaspi_dev_config_t;

/* The fields up to network, passive_queue_size_max and user_defined are kept, and nothing depends on them. */
typedef struct gaspi_config {
    gaspi_uint logger;
    gaspi_uint sn_port;
    gaspi_uint net_info;
    gaspi_uint user_net;
    gaspi_int sn_persistent;
    gaspi_timeout_t sn_timeout;
    gaspi_dev_config_t dev_config;
    gaspi_network_t network;
    gaspi_uint queue_size_max;                /* open requests of a queue: 1 to 4096 [1024] */
    gaspi_uint queue_num;                     /* queues made at the start: 1 to 16 [8] */
    gaspi_number_t group_max;                 /* groups at a time: 1 to 32 [32] */
    gaspi_number_t segment_max;               /* segments at a time: 1 to 255 [255] */
    gaspi_size_t transfer_size_max;           /* bytes of a transfer: 1 to 1 GiB [1 GiB] */
    gaspi_number_t notification_num;          /* notifications of each segment: 1 to 65536 [65536] */
    gaspi_number_t passive_queue_size_max;
    gaspi_number_t passive_transfer_size_max; /* bytes of a passive message: 1 to 65535 [65535] */
    gaspi_size_t allreduce_buf_size;          /* bytes of gaspi_allreduce_user: 1 to 2040 [2040] */
    gaspi_number_t allreduce_elem_max;        /* elements of a reduction: 1 to 255 [255] */
    gaspi_number_t rw_list_elem_max;          /* parts of a list: 1 to 255 [255] */
    gaspi_topology_t build_infrastructure;
    void *user_defined;
} gaspi_config_t;

/*
 * Combines `num` elements of `element_size` bytes of two operands in `result`; returns GASPI_SUCCESS. Associative and commutative. It
 * makes no call of this library.
 */
typedef gaspi_return_t (*gaspi_reduce_operation_t)(gaspi_pointer_t operand_one, gaspi_pointer_t operand_two,
                                                   gaspi_pointer_t result, gaspi_reduce_state_t state,
                                                   const gaspi_number_t num, const gaspi_size_t element_size,
                                                   const gaspi_timeout_t timeout_ms);

/* Declares a call under both names. */
#define BELLWETHER_GASPI_CALL(name, arguments)                                                                   \
    gaspi_return_t gaspi_##name arguments;                                                                       \
    gaspi_return_t pgaspi_##name arguments

/* Configuration and life cycle. These calls are for every phase. */

BELLWETHER_GASPI_CALL(config_get, (gaspi_config_t * config));
/* Outside of the working phase, and not between calls of gaspi_proc_init, else GASPI_ERR_INITED; alike on all ranks. GASPI_ERR_CONFIG for a number outside its range. */
BELLWETHER_GASPI_CALL(config_set, (const gaspi_config_t new_config));
BELLWETHER_GASPI_CALL(version, (float *version));
/*
 * Begins the working phase, when all ranks have called it. Collective. The first call joins the job, however long that takes; if it
 * cannot, gaspi_print_error of its code has the reason: GASPI_ERR_ENV for a setting without a meaning, and for a rank that came up alone;
 * GASPI_ERR_EMFILE; GASPI_ERR_MEMALLOC; GASPI_ERR_SN if the ranks did not find each other; else GASPI_ERROR. GASPI_ERR_INITED in the working phase; GASPI_ERR_CONFIG at all ranks if
 * their configurations differ.
 */
BELLWETHER_GASPI_CALL(proc_init, (const gaspi_timeout_t timeout_ms));
/* Ends the working phase of this rank: its segments, queues and groups are gone. Call gaspi_barrier before. */
BELLWETHER_GASPI_CALL(proc_term, (const gaspi_timeout_t timeout_ms));

/* Ranks */

BELLWETHER_GASPI_CALL(proc_rank, (gaspi_rank_t * rank));
BELLWETHER_GASPI_CALL(proc_num, (gaspi_rank_t * proc_num));
/* Ends another process. GASPI_ERR_INV_RANK for the own one. */
BELLWETHER_GASPI_CALL(proc_kill, (const gaspi_rank_t rank, const gaspi_timeout_t timeout_ms));
/* Makes the path of each queue to a rank, which the first operation there does otherwise; gives up the endpoints of the queues, when what is
 * under way in them is over. */
BELLWETHER_GASPI_CALL(connect, (const gaspi_rank_t rank, const gaspi_timeout_t timeout_ms));
BELLWETHER_GASPI_CALL(disconnect, (const gaspi_rank_t rank, const gaspi_timeout_t timeout_ms));
/* What this rank knows of each: a byte a rank. A failed operation with a rank makes it GASPI_STATE_CORRUPT. */
BELLWETHER_GASPI_CALL(state_vec_get, (gaspi_state_vector_t state_vector));

/* Groups: local, except for gaspi_group_commit, which all members call. */

BELLWETHER_GASPI_CALL(group_create, (gaspi_group_t * group));
BELLWETHER_GASPI_CALL(group_delete, (const gaspi_group_t group));
BELLWETHER_GASPI_CALL(group_add, (const gaspi_group_t group, const gaspi_rank_t rank));
BELLWETHER_GASPI_CALL(group_commit, (const gaspi_group_t group, const gaspi_timeout_t timeout_ms));
BELLWETHER_GASPI_CALL(group_num, (gaspi_number_t * group_num));
BELLWETHER_GASPI_CALL(group_size, (const gaspi_group_t group, gaspi_number_t *group_size));
/* `group_ranks` has room for gaspi_group_size ranks, which come in ascending order. */
BELLWETHER_GASPI_CALL(group_ranks, (const gaspi_group_t group, gaspi_rank_t *group_ranks));
BELLWETHER_GASPI_CALL(group_max, (gaspi_number_t * group_max));

/* Segments: sizes and offsets are bytes. */

BELLWETHER_GASPI_CALL(segment_alloc, (const gaspi_segment_id_t segment_id, const gaspi_size_t size,
                                      const gaspi_alloc_t alloc_policy));
/* Waits until nothing of other ranks is under way to it. Memory of the program stays. */
BELLWETHER_GASPI_CALL(segment_delete, (const gaspi_segment_id_t segment_id));
/* `rank` can reach the segment on return, and later ones with this id. Else what it posts there is GASPI_ERR_INV_SEG. */
BELLWETHER_GASPI_CALL(segment_register, (const gaspi_segment_id_t segment_id, const gaspi_rank_t rank,
                                         const gaspi_timeout_t timeout_ms));
/* A segment at each member of a group, which all can reach on return. Collective. */
BELLWETHER_GASPI_CALL(segment_create, (const gaspi_segment_id_t segment_id, const gaspi_size_t size,
                                       const gaspi_group_t group, const gaspi_timeout_t timeout_ms,
                                       const gaspi_alloc_t alloc_policy));
/* As gaspi_segment_alloc and gaspi_segment_create, of memory that is the program's until the segment is deleted. */
BELLWETHER_GASPI_CALL(segment_bind, (const gaspi_segment_id_t segment_id, const gaspi_pointer_t pointer,
                                     const gaspi_size_t size, const gaspi_memory_description_t memory_description));
BELLWETHER_GASPI_CALL(segment_use, (const gaspi_segment_id_t segment_id, const gaspi_pointer_t pointer,
                                    const gaspi_size_t size, const gaspi_group_t group, const gaspi_timeout_t timeout_ms,
                                    const gaspi_memory_description_t memory_description));
BELLWETHER_GASPI_CALL(segment_num, (gaspi_number_t * segment_num));
/* `num` is that of gaspi_segment_num, else GASPI_ERR_INV_NUM. */
BELLWETHER_GASPI_CALL(segment_list, (const gaspi_number_t num, gaspi_segment_id_t *segment_id_list));
BELLWETHER_GASPI_CALL(segment_ptr, (const gaspi_segment_id_t segment_id, gaspi_pointer_t *pointer));
BELLWETHER_GASPI_CALL(segment_max, (gaspi_number_t * segment_max));

/* One-sided: each posts one request on a queue. */

BELLWETHER_GASPI_CALL(write, (const gaspi_segment_id_t segment_id_local, const gaspi_offset_t offset_local,
                              const gaspi_rank_t rank, const gaspi_segment_id_t segment_id_remote,
                              const gaspi_offset_t offset_remote, const gaspi_size_t size,
                              const gaspi_queue_id_t queue, const gaspi_timeout_t timeout_ms));
BELLWETHER_GASPI_CALL(read, (const gaspi_segment_id_t segment_id_local, const gaspi_offset_t offset_local,
                             const gaspi_rank_t rank, const gaspi_segment_id_t segment_id_remote,
                             const gaspi_offset_t offset_remote, const gaspi_size_t size,
                             const gaspi_queue_id_t queue, const gaspi_timeout_t timeout_ms));
/* `num` parts, each as gaspi_write or gaspi_read: all are posted, or none. */
BELLWETHER_GASPI_CALL(write_list, (const gaspi_number_t num, const gaspi_segment_id_t *segment_id_local,
                                   const gaspi_offset_t *offset_local, const gaspi_rank_t rank,
                                   const gaspi_segment_id_t *segment_id_remote, const gaspi_offset_t *offset_remote,
                                   const gaspi_size_t *size, const gaspi_queue_id_t queue,
                                   const gaspi_timeout_t timeout_ms));
BELLWETHER_GASPI_CALL(read_list, (const gaspi_number_t num, const gaspi_segment_id_t *segment_id_local,
                                  const gaspi_offset_t *offset_local, const gaspi_rank_t rank,
                                  const gaspi_segment_id_t *segment_id_remote, const gaspi_offset_t *offset_remote,
                                  const gaspi_size_t *size, const gaspi_queue_id_t queue,
                                  const gaspi_timeout_t timeout_ms));
/* Local completion of all that was posted on the queue: what was written may be changed, what was read is here. */
BELLWETHER_GASPI_CALL(wait, (const gaspi_queue_id_t queue, const gaspi_timeout_t timeout_ms));

/* Notifications. Who sees one sees the writes posted before on the same queue to the same rank. */

BELLWETHER_GASPI_CALL(notify, (const gaspi_segment_id_t segment_id_remote, const gaspi_rank_t rank,
                               const gaspi_notification_id_t notification_id,
                               const gaspi_notification_t notification_value, const gaspi_queue_id_t queue,
                               const gaspi_timeout_t timeout_ms));
/* Any of `num` notifications from `notification_begin` on that has a value, which it keeps. At once for num 0. */
BELLWETHER_GASPI_CALL(notify_waitsome, (const gaspi_segment_id_t segment_id,
                                        const gaspi_notification_id_t notification_begin, const gaspi_number_t num,
                                        gaspi_notification_id_t *first_id, const gaspi_timeout_t timeout_ms));
/* Sets it to 0 and gives what it was: to one of several threads. `old_value` may be NULL. */
BELLWETHER_GASPI_CALL(notify_reset, (const gaspi_segment_id_t segment_id,
                                     const gaspi_notification_id_t notification_id, gaspi_notification_t *old_value));
BELLWETHER_GASPI_CALL(write_notify, (const gaspi_segment_id_t segment_id_local, const gaspi_offset_t offset_local,
                                     const gaspi_rank_t rank, const gaspi_segment_id_t segment_id_remote,
                                     const gaspi_offset_t offset_remote, const gaspi_size_t size,
                                     const gaspi_notification_id_t notification_id,
                                     const gaspi_notification_t notification_value, const gaspi_queue_id_t queue,
                                     const gaspi_timeout_t timeout_ms));
/* Sets the notification of the local segment to 1 when what was read is there. */
BELLWETHER_GASPI_CALL(read_notify, (const gaspi_segment_id_t segment_id_local, const gaspi_offset_t offset_local,
                                    const gaspi_rank_t rank, const gaspi_segment_id_t segment_id_remote,
                                    const gaspi_offset_t offset_remote, const gaspi_size_t size,
                                    const gaspi_notification_id_t notification_id, const gaspi_queue_id_t queue,
                                    const gaspi_timeout_t timeout_ms));
BELLWETHER_GASPI_CALL(write_list_notify,
                      (const gaspi_number_t num, const gaspi_segment_id_t *segment_id_local,
                       const gaspi_offset_t *offset_local, const gaspi_rank_t rank,
                       const gaspi_segment_id_t *segment_id_remote, const gaspi_offset_t *offset_remote,
                       const gaspi_size_t *size, const gaspi_segment_id_t segment_id_notification,
                       const gaspi_notification_id_t notification_id, const gaspi_notification_t notification_value,
                       const gaspi_queue_id_t queue, const gaspi_timeout_t timeout_ms));
BELLWETHER_GASPI_CALL(read_list_notify,
                      (const gaspi_number_t num, const gaspi_segment_id_t *segment_id_local,
                       const gaspi_offset_t *offset_local, const gaspi_rank_t rank,
                       const gaspi_segment_id_t *segment_id_remote, const gaspi_offset_t *offset_remote,
                       const gaspi_size_t *size, const gaspi_segment_id_t segment_id_notification,
                       const gaspi_notification_id_t notification_id, const gaspi_queue_id_t queue,
                       const gaspi_timeout_t timeout_ms));

/* Queues. Only the creator calls; ids are the lowest free ones. */

BELLWETHER_GASPI_CALL(queue_create, (gaspi_queue_id_t * queue, const gaspi_timeout_t timeout_ms));
/* Waits for open requests first. GASPI_ERROR while another thread waits for the queue, or for room to post on it. */
BELLWETHER_GASPI_CALL(queue_delete, (const gaspi_queue_id_t queue));
/*
 * Requests posted since the last gaspi_wait that succeeded, and those of calls that wait for room to post. A list of several parts with a
 * notification counts as one request for each part and one for the notification; another call with a notification counts as one.
 */
BELLWETHER_GASPI_CALL(queue_size, (const gaspi_queue_id_t queue, gaspi_number_t *queue_size));
/* Gives up all requests, after a failure. */
BELLWETHER_GASPI_CALL(queue_purge, (const gaspi_queue_id_t queue, const gaspi_timeout_t timeout_ms));
BELLWETHER_GASPI_CALL(queue_num, (gaspi_number_t * queue_num));

/* Passive messages. Complete at the sender when the message is received, at the receiver when it is in the segment. */

BELLWETHER_GASPI_CALL(passive_send, (const gaspi_segment_id_t segment_id_local, const gaspi_offset_t offset_local,
                                     const gaspi_rank_t rank, const gaspi_size_t size,
                                     const gaspi_timeout_t timeout_ms));
BELLWETHER_GASPI_CALL(passive_receive, (const gaspi_segment_id_t segment_id_local, const gaspi_offset_t offset_local,
                                        gaspi_rank_t *rem_rank, const gaspi_size_t size,
                                        const gaspi_timeout_t timeout_ms));

/* Atomic operations on words of 8 bytes at multiples of 8. They wait for the old value. */

BELLWETHER_GASPI_CALL(atomic_fetch_add, (const gaspi_segment_id_t segment_id, const gaspi_offset_t offset,
                                         const gaspi_rank_t rank, const gaspi_atomic_value_t val_add,
                                         gaspi_atomic_value_t *val_old, const gaspi_timeout_t timeout_ms));
BELLWETHER_GASPI_CALL(atomic_compare_swap, (const gaspi_segment_id_t segment_id, const gaspi_offset_t offset,
                                            const gaspi_rank_t rank, const gaspi_atomic_value_t comparator,
                                            const gaspi_atomic_value_t val_new, gaspi_atomic_value_t *val_old,
                                            const gaspi_timeout_t timeout_ms));

/* Collectives of a committed group. A barrier and a reduction may be under way at the same time. */

BELLWETHER_GASPI_CALL(barrier, (const gaspi_group_t group, const gaspi_timeout_t timeout_ms));
/* The same bits at all members. What is sent is copied by the call that begins it. */
BELLWETHER_GASPI_CALL(allreduce, (gaspi_const_pointer_t buffer_send, gaspi_pointer_t buffer_receive,
                                  const gaspi_number_t num, const gaspi_operation_t operation,
                                  const gaspi_datatype_t datatyp, const gaspi_group_t group,
                                  const gaspi_timeout_t timeout_ms));
BELLWETHER_GASPI_CALL(allreduce_user, (gaspi_const_pointer_t buffer_send, gaspi_pointer_t buffer_receive,
                                       const gaspi_number_t num, const gaspi_size_t element_size,
                                       gaspi_reduce_operation_t reduce_operation, gaspi_reduce_state_t reduce_state,
                                       const gaspi_group_t group, const gaspi_timeout_t timeout_ms));

/* Numbers of the configuration, and fixed ones. For every phase. */

BELLWETHER_GASPI_CALL(transfer_size_min, (gaspi_size_t * transfer_size_min));
BELLWETHER_GASPI_CALL(transfer_size_max, (gaspi_size_t * transfer_size_max));
BELLWETHER_GASPI_CALL(notification_num, (gaspi_number_t * notification_num));
BELLWETHER_GASPI_CALL(passive_transfer_size_min, (gaspi_size_t * passive_transfer_size_min));
BELLWETHER_GASPI_CALL(passive_transfer_size_max, (gaspi_size_t * passive_transfer_size_max));
BELLWETHER_GASPI_CALL(atomic_max, (gaspi_atomic_value_t * max_value));
BELLWETHER_GASPI_CALL(allreduce_buf_size, (gaspi_size_t * buf_size));
BELLWETHER_GASPI_CALL(allreduce_elem_max, (gaspi_number_t * elem_max));
BELLWETHER_GASPI_CALL(rw_list_elem_max, (gaspi_number_t * elem_max));
BELLWETHER_GASPI_CALL(queue_size_max, (gaspi_number_t * queue_size_max));
BELLWETHER_GASPI_CALL(queue_max, (gaspi_number_t * queue_max));
BELLWETHER_GASPI_CALL(network_type, (gaspi_network_t * network_type));
BELLWETHER_GASPI_CALL(build_infrastructure, (gaspi_number_t * build_infrastructure));

/* Times since the first call of these, and texts. For every phase. */

/* Milliseconds. */
BELLWETHER_GASPI_CALL(time_get, (gaspi_time_t * wtime));
/* In the unit of gaspi_cpu_frequency. */
BELLWETHER_GASPI_CALL(time_ticks, (gaspi_cycles_t * ticks));
/* The text of a code, from malloc: free it. Of the code of this thread's last failed start its reason. */
BELLWETHER_GASPI_CALL(print_error, (const gaspi_return_t error_code, gaspi_string_t *error_message));

/* Counters of requests that this rank has posted, which count while the level is not 0. For every phase. */

BELLWETHER_GASPI_CALL(statistic_verbosity_level, (const gaspi_number_t verbosity_level));
BELLWETHER_GASPI_CALL(statistic_counter_max, (gaspi_number_t * counter_max));
BELLWETHER_GASPI_CALL(statistic_counter_info, (const gaspi_statistic_counter_t counter,
                                               gaspi_statistic_argument_t *counter_argument,
                                               gaspi_string_t *counter_name, gaspi_string_t *counter_description,
                                               gaspi_number_t *verbosity_level));
BELLWETHER_GASPI_CALL(statistic_counter_get, (const gaspi_statistic_counter_t counter, const gaspi_number_t argument,
                                              gaspi_ulong *value));
BELLWETHER_GASPI_CALL(statistic_counter_reset, (const gaspi_statistic_counter_t counter));

#ifdef __cplusplus
}
#endif

/* Programs find these calls also without including the header. */
#include "GASPI_Ext.h"

#endif
