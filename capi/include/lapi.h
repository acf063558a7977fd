/*
 * LAPI: active messages with counters, one-sided put, get and atomic operations between the tasks of a job.
 *
 * A task is one process of a job, numbered from 0. Start the job with `bellwether run -n 4 ./program`, with `BELLWETHER_RANKS=4
 * ./program`, or with mpirun or srun (if the library was built with MPI). LAPI_Init joins it.
 *
 * Source of each name: the LAPI programming guide, except LAPI_ERR_IN_HANDLER and what follows it, which are of this library. Numbers
 * are those of the guide's header. Structures have its fields; layouts are this library's, so programs are compiled anew.
 *
 * Errors: every call returns LAPI_SUCCESS or a code; LAPI_Msg_string has its text. If the code names an argument, nothing was sent and
 * no counter moved. LAPI_ERR_NO_HNDLR_SET, LAPI_ERR_PEER_LOST, LAPI_ERR_BAD_ADDRESS and LAPI_ERR_RUNTIME can also tell of an earlier
 * message: the first call that makes progress afterwards returns them, once.
 *
 * Threads: every call may be made from every thread of the task. A forked child is no task: its calls are LAPI_ERR_HNDL_INVALID.
 *
 * Profiling: every call has a second name, PLAPI_ in place of LAPI_. A program that defines LAPI_Put itself and calls PLAPI_Put in it
 * sees its own puts. That needs the shared library.
 *
 * C++: handlers have C linkage or not, as the compiler allows. An exception that leaves a handler ends the job through
 * std::terminate, which prints it.
 */
#ifndef BELLWETHER_LAPI_H
#define BELLWETHER_LAPI_H

#include <sys/types.h>
/* The types of LAPI's programs, which strict standards leave out of <sys/types.h>. */
#if defined(__GLIBC__) && !defined(__USE_MISC)
typedef unsigned int uint;
typedef unsigned long ulong;
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Handles, counters, 64-bit values */

/* What LAPI_Init makes. By value; handlers get a pointer to it. */
typedef unsigned int lapi_handle_t;
#ifdef __GNUC__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wlong-long"
#endif
/* Addresses and long values, alike on all tasks. */
typedef unsigned long long lapi_long_t;
/* The operands of LAPI_Rmw64. */
typedef long long lapi_rmw64_t;
#ifdef __GNUC__
#pragma GCC diagnostic pop
#endif
/* A counter. Set it with LAPI_Setcntr, read it with LAPI_Getcntr; `cntr` is its value. */
typedef union {
    int cntr;
} lapi_cntr_t;

#define LAPI_ADDR_NULL ((void *)0)
/* The most bytes of a message. */
#define LAPI_MAX_MSG_SZ 0x7fffffffffffffffUL
/* The size of the buffer of LAPI_Msg_string. */
#define LAPI_MAX_ERR_STRING 160

/* Codes */

#define LAPI_SUCCESS 0
#define LAPI_ERR_ALL_HNDL_IN_USE 401
#define LAPI_ERR_INFO_NULL 405
#define LAPI_ERR_HDR_HNDLR_NULL 409
#define LAPI_ERR_HNDL_INVALID 417
#define LAPI_ERR_RET_PTR_NULL 418
#define LAPI_ERR_ADDR_HNDL_RANGE 419
#define LAPI_ERR_ADDR_TBL_NULL 420
#define LAPI_ERR_TGT_PURGED 421
#define LAPI_ERR_MULTIPLE_WAITERS 422
#define LAPI_ERR_MEMORY_EXHAUSTED 423
#define LAPI_ERR_INFO_NONZERO 424
#define LAPI_ERR_ORG_ADDR_NULL 425
#define LAPI_ERR_TGT_ADDR_NULL 426
#define LAPI_ERR_DATA_LEN 427
#define LAPI_ERR_TGT 428
#define LAPI_ERR_UHDR_NULL 429
#define LAPI_ERR_UHDR_LEN 430
#define LAPI_ERR_HDR_LEN 431
#define LAPI_ERR_ORG_EXTENT 432
#define LAPI_ERR_ORG_STRIDE 433
#define LAPI_ERR_ORG_VEC_ADDR 440
#define LAPI_ERR_ORG_VEC_LEN 441
#define LAPI_ERR_ORG_VEC_NULL 442
#define LAPI_ERR_ORG_VEC_TYPE 443
#define LAPI_ERR_STRIDE_ORG_ADDR_NULL 444
#define LAPI_ERR_STRIDE_TGT_ADDR_NULL 445
#define LAPI_ERR_TGT_EXTENT 446
#define LAPI_ERR_TGT_STRIDE 447
#define LAPI_ERR_TGT_VEC_ADDR 448
#define LAPI_ERR_TGT_VEC_LEN 449
#define LAPI_ERR_TGT_VEC_NULL 451
#define LAPI_ERR_TGT_VEC_TYPE 452
#define LAPI_ERR_VEC_NUM_DIFF 453
#define LAPI_ERR_VEC_TYPE_DIFF 454
#define LAPI_ERR_VEC_LEN_DIFF 455
#define LAPI_ERR_MSG_INFO_NULL 456
#define LAPI_ERR_CNTR_NULL 458
#define LAPI_ERR_CNTR_VAL 459
#define LAPI_ERR_QUERY_TYPE 460
#define LAPI_ERR_IN_VAL_NULL 461
#define LAPI_ERR_RMW_OP 462
#define LAPI_ERR_TGT_VAR_NULL 463
#define LAPI_ERR_SET_VAL 464
#define LAPI_ERR_OP_SZ 474
#define LAPI_ERR_XFER_CMD 476
#define LAPI_ERR_UTIL_CMD 477
#define LAPI_ERR_CATALOG_FAIL 478
#define LAPI_ERR_INVALID_SEND_REPLY_TGT 501
#define LAPI_ERR_LW_DATA_LEN 515
#define LAPI_ERR_NO_HNDLR_SET 516
#define LAPI_ERR_CODE_UNKNOWN 519
/* Of this library: the call was made in a header handler, or in an inline completion handler that may not make it. */
#define LAPI_ERR_IN_HANDLER 900
/* Of this library: a task failed or left the job. */
#define LAPI_ERR_PEER_LOST 901
/* Of this library: a handler of a Rust program panicked. */
#define LAPI_ERR_HANDLER_PANICKED 902
/* Of this library: the memory at an address of the target cannot be reached. */
#define LAPI_ERR_BAD_ADDRESS 903
/* Of this library: the runtime reported an error. LAPI_Msg_string has its own text in the thread that got this code. */
#define LAPI_ERR_RUNTIME 904

/* What LAPI_Qenv and LAPI_Senv name */

typedef enum {
    TASK_ID = 0,
    NUM_TASKS = 1,
    MAX_UHDR_SZ = 2,
    MAX_DATA_SZ = 3,
    /* Whether arguments are checked. It reads back what was set; they are checked in either case. */
    ERROR_CHK = 4,
    /* Seconds. It reads back what was set. */
    TIMEOUT = 5,
    MIN_TIMEOUT = 6,
    MAX_TIMEOUT = 7,
    /* 1: interrupt mode, the default. 0: polling mode. */
    INTERRUPT_SET = 8,
    MAX_PORTS = 9,
    MAX_PKT_SZ = 10,
    NUM_REX_BUFS = 11,
    REX_BUF_SZ = 12,
    /* Indexes of LAPI_Addr_set are below it. */
    LOC_ADDRTBL_SZ = 13,
    EPOCH_NUM = 14,
    USE_THRESH = 15,
    RCV_FIFO_SIZE = 16,
    MAX_ATOM_SIZE = 17,
    BUF_CP_SIZE = 18,
    MAX_PKTS_OUT = 19,
    ACK_THRESHOLD = 20
} lapi_query_t;

/* Handlers */

/* Runs at the target when the data of a message is in place. */
typedef void(compl_hndlr_t)(lapi_handle_t *hndl, void *completion_param);

/*
 * Runs at the target when a message arrives, and returns the address where its data goes. `msg_len` points to a lapi_return_info_t.
 * Must not block. A LAPI call that communicates is LAPI_ERR_IN_HANDLER there.
 */
typedef void *(hdr_hndlr_t)(lapi_handle_t *hndl, void *uhdr, uint *uhdr_len, ulong *msg_len, compl_hndlr_t **comp_h,
                            void **user_info);

/* ret_flags: when the completion handler runs. */
typedef int lapi_ret_flags_t;
/* On the handler thread. */
#define LAPI_NORMAL 0
/* Inline, and it does not communicate. */
#define LAPI_LOCAL_STATE 1
/* Inline, and it may send to the source of its message. */
#define LAPI_SEND_REPLY 2

/* ctl_flags: what happens to the data. */
typedef enum {
    /* It goes to the address that the header handler returned. */
    LAPI_DELIVER_MSG = 0,
    /* It is dropped. */
    LAPI_BURY_MSG = 1,
    /* The message is delivered again, to the header handler too. */
    LAPI_DROP_PKT = 2
} lapi_ctl_flags_t;

typedef int lapi_dg_handle_t;

/* What a header handler learns of a message through `msg_len`, and what it answers. */
typedef struct {
    ulong msg_len;
    /* Not to be changed. */
    int MAGIC;
    lapi_ret_flags_t ret_flags;
    lapi_ctl_flags_t ctl_flags;
    /* Not to be used. */
    lapi_dg_handle_t dgsp_handle;
    /* At first `msg_len`. A header handler that makes it less gets so many bytes of the data. */
    ulong bytes;
    /* The task that sent the message. */
    int src;
    /* The data, if it came with the header; else null. It is gone when the header handler returns. */
    void *udata_one_pkt_ptr;
    ulong recv_offset;
} lapi_return_info_t;

/* What LAPI_Init is told */

typedef enum { GET_ERR = 0, PUT_ERR = 1, RMW_ERR = 2, AM_ERR = 3, INT_ERR = 4, TMR_ERR = 5 } lapi_err_t;
/*
 * Runs when a call is about to return the code of an earlier message or of a failed task, in the thread of that call. `src` is the
 * task that it is about, or -1. Without one the code is all there is; the job goes on in either case.
 */
typedef void(LAPI_err_hndlr)(lapi_handle_t *hndl, int *error_code, lapi_err_t *err_type, int *task_id, int *src);

typedef int lapi_dev_t;
typedef enum { L1_LIB = 0, L2_LIB = 1, L3_LIB = 2, L4_LIB = 3, LAST_LIB = 4 } lapi_lib_t;

/*
 * Fill it with zeros, then set what is marked so. What is ignored may have any value; what is set elsewhere is
 * LAPI_ERR_INFO_NONZERO.
 */
typedef struct {
    lapi_dev_t protocol;
    /* May be set: L1_LIB to L4_LIB, which are alike. */
    lapi_lib_t lib_vers;
    /* Ignored. */
    uint epoch_num;
    /* Ignored: there is one handler thread. */
    int num_compl_hndlr_thr;
    /* Ignored: a process is in one job. */
    uint instance_no;
    int info6;
    /* May be set. */
    LAPI_err_hndlr *err_hndlr;
    void *lapi_thread_attr;
    void *adapter_name;
    void *add_info;
} lapi_info_t;

/* Setting up */

/*
 * Joins the job and makes a handle. Collective. A process has one handle at a time; after LAPI_Term it may make another one. The
 * process leaves the job when it exits.
 */
int LAPI_Init(lapi_handle_t *hndl, lapi_info_t *lapi_info);

/*
 * Waits until every task has called this, all messages are in place and all completion handlers have run, and ends the handle.
 * Collective. Not in a handler.
 */
int LAPI_Term(lapi_handle_t hndl);

int LAPI_Qenv(lapi_handle_t hndl, lapi_query_t query, int *ret_val);
/* Sets ERROR_CHK, TIMEOUT or INTERRUPT_SET. */
int LAPI_Senv(lapi_handle_t hndl, lapi_query_t query, int set_val);

/* Copies the text of a code to the LAPI_MAX_ERR_STRING bytes at `buf`. May be called before LAPI_Init. */
int LAPI_Msg_string(int error_code, void *buf);

/* Stores the address `my_addr` in `ret_addr`. May be called before LAPI_Init. */
int LAPI_Address(void *my_addr, ulong *ret_addr);

/* Every task gives an address, and `add_tab[i]` becomes that of task `i`. Collective; blocks. `my_addr` may be null. */
int LAPI_Address_init(lapi_handle_t hndl, void *my_addr, void *add_tab[]);
int LAPI_Address_init64(lapi_handle_t hndl, lapi_long_t my_addr, lapi_long_t *add_tab);

/* Registers a header handler of this task under an index, 1 to LOC_ADDRTBL_SZ - 1, which LAPI_Amsend takes in place of an address. */
int LAPI_Addr_set(lapi_handle_t hndl, void *addr, int addr_hndl);
/* The address under an index, null if there is none. */
int LAPI_Addr_get(lapi_handle_t hndl, void **addr, int addr_hndl);

/* Messages */

/*
 * Sends an active message. At task `tgt` the header handler `hdr_hdl`, an address there or an index of LAPI_Addr_set there, runs once,
 * and says where the data goes. Counters, each null or not, move by one: `tgt_cntr`, an address at the target, when the completion
 * handler has returned, or the data is in place if there is none; `org_cntr` when user header and data may be changed; `cmpl_cntr`
 * after `tgt_cntr`. Waits for room only. `uhdr_len` is a multiple of 4, up to MAX_UHDR_SZ.
 */
int LAPI_Amsend(lapi_handle_t hndl, uint tgt, void *hdr_hdl, void *uhdr, uint uhdr_len, void *udata, ulong udata_len,
                lapi_cntr_t *tgt_cntr, lapi_cntr_t *org_cntr, lapi_cntr_t *cmpl_cntr);

/* Copies `len` bytes at `org_addr` to address `tgt_addr` of task `tgt`. Counters as of LAPI_Amsend. */
int LAPI_Put(lapi_handle_t hndl, uint tgt, ulong len, void *tgt_addr, void *org_addr, lapi_cntr_t *tgt_cntr,
             lapi_cntr_t *org_cntr, lapi_cntr_t *cmpl_cntr);

/*
 * Copies `len` bytes at address `tgt_addr` of task `tgt` to `org_addr`. `org_cntr` moves when the data is here, `tgt_cntr`, an address
 * at the target, when the memory there may be changed.
 */
int LAPI_Get(lapi_handle_t hndl, uint tgt, ulong len, void *tgt_addr, void *org_addr, lapi_cntr_t *tgt_cntr,
             lapi_cntr_t *org_cntr);

typedef enum { FETCH_AND_ADD = 0, FETCH_AND_OR = 1, SWAP = 2, COMPARE_AND_SWAP = 3 } RMW_ops_t;

/*
 * An atomic operation on the `int` at address `tgt_var` of task `tgt`. COMPARE_AND_SWAP has two operands at `in_val`: the value to
 * compare with and the new one. When `org_cntr` has moved, `prev_tgt_val`, if it is not null, has the value before, or, of
 * COMPARE_AND_SWAP, 1 if it was equal and 0 if not.
 */
int LAPI_Rmw(lapi_handle_t hndl, RMW_ops_t op, uint tgt, int *tgt_var, int *in_val, int *prev_tgt_val,
             lapi_cntr_t *org_cntr);
int LAPI_Rmw64(lapi_handle_t hndl, RMW_ops_t op, uint tgt, lapi_rmw64_t *tgt_var, lapi_rmw64_t *in_val,
               lapi_rmw64_t *prev_tgt_val, lapi_cntr_t *org_cntr);

/* Counters and progress */

int LAPI_Setcntr(lapi_handle_t hndl, lapi_cntr_t *cntr, int val);
/* Makes progress once, and stores the counter's value in `val`. */
int LAPI_Getcntr(lapi_handle_t hndl, lapi_cntr_t *cntr, int *val);
/* Makes progress until the counter is at least `val`, subtracts `val`, and stores what is left in `cur_cntr_val`, if not null. */
int LAPI_Waitcntr(lapi_handle_t hndl, lapi_cntr_t *cntr, int val, int *cur_cntr_val);
/* Makes progress once. */
int LAPI_Probe(lapi_handle_t hndl);

/* Waits until all that this task has sent is in place at its targets. Does not wait for completion handlers. */
int LAPI_Fence(lapi_handle_t hndl);
/* A fence of every task, and a barrier. Collective. */
int LAPI_Gfence(lapi_handle_t hndl);

/* From now on nothing is sent to task `dest`: calls that would are LAPI_ERR_TGT_PURGED. Local. */
int LAPI_Purge_totask(lapi_handle_t hndl, uint dest);
/* Lets calls send to task `dest` again. Local. */
int LAPI_Resume_totask(lapi_handle_t hndl, uint dest);

/* Profiling names: the same calls. */

int PLAPI_Init(lapi_handle_t *hndl, lapi_info_t *lapi_info);
int PLAPI_Term(lapi_handle_t hndl);
int PLAPI_Qenv(lapi_handle_t hndl, lapi_query_t query, int *ret_val);
int PLAPI_Senv(lapi_handle_t hndl, lapi_query_t query, int set_val);
int PLAPI_Msg_string(int error_code, void *buf);
int PLAPI_Address(void *my_addr, ulong *ret_addr);
int PLAPI_Address_init(lapi_handle_t hndl, void *my_addr, void *add_tab[]);
int PLAPI_Address_init64(lapi_handle_t hndl, lapi_long_t my_addr, lapi_long_t *add_tab);
int PLAPI_Addr_set(lapi_handle_t hndl, void *addr, int addr_hndl);
int PLAPI_Addr_get(lapi_handle_t hndl, void **addr, int addr_hndl);
int PLAPI_Amsend(lapi_handle_t hndl, uint tgt, void *hdr_hdl, void *uhdr, uint uhdr_len, void *udata, ulong udata_len,
                 lapi_cntr_t *tgt_cntr, lapi_cntr_t *org_cntr, lapi_cntr_t *cmpl_cntr);
int PLAPI_Put(lapi_handle_t hndl, uint tgt, ulong len, void *tgt_addr, void *org_addr, lapi_cntr_t *tgt_cntr,
              lapi_cntr_t *org_cntr, lapi_cntr_t *cmpl_cntr);
int PLAPI_Get(lapi_handle_t hndl, uint tgt, ulong len, void *tgt_addr, void *org_addr, lapi_cntr_t *tgt_cntr,
              lapi_cntr_t *org_cntr);
int PLAPI_Rmw(lapi_handle_t hndl, RMW_ops_t op, uint tgt, int *tgt_var, int *in_val, int *prev_tgt_val,
              lapi_cntr_t *org_cntr);
int PLAPI_Rmw64(lapi_handle_t hndl, RMW_ops_t op, uint tgt, lapi_rmw64_t *tgt_var, lapi_rmw64_t *in_val,
                lapi_rmw64_t *prev_tgt_val, lapi_cntr_t *org_cntr);
int PLAPI_Setcntr(lapi_handle_t hndl, lapi_cntr_t *cntr, int val);
int PLAPI_Getcntr(lapi_handle_t hndl, lapi_cntr_t *cntr, int *val);
int PLAPI_Waitcntr(lapi_handle_t hndl, lapi_cntr_t *cntr, int val, int *cur_cntr_val);
int PLAPI_Probe(lapi_handle_t hndl);
int PLAPI_Fence(lapi_handle_t hndl);
int PLAPI_Gfence(lapi_handle_t hndl);
int PLAPI_Purge_totask(lapi_handle_t hndl, uint dest);
int PLAPI_Resume_totask(lapi_handle_t hndl, uint dest);

#ifdef __cplusplus
}
#endif

#endif
