/*
 * LAPI: active messages with counters, one-sided put, get and atomic operations between the tasks of a job.
 *
 * A task is one process of a job, numbered from 0. Start the job with `bellwether run -n 4 ./program`, with `BELLWETHER_RANKS=4
 * ./program`, or with mpirun or srun, which need no MPI in the library. LAPI_Init joins it.
 *
 * Source of each name: the LAPI programming guide, except LAPI_ERR_IN_HANDLER and the codes after it, which are of this library. Numbers
 * are those of the guide's header. Structures have its fields, but this library's layouts, so programs must be recompiled.
 *
 * Errors: every call returns LAPI_SUCCESS or a code; LAPI_Msg_string has its text. If the code names an argument, nothing was sent and
 * no counter moved. LAPI_ERR_NO_HNDLR_SET, LAPI_ERR_PEER_LOST, LAPI_ERR_BAD_ADDRESS, LAPI_ERR_MEMORY_EXHAUSTED, LAPI_ERR_RUNTIME, and the
 * codes of the vectors of LAPI_Amsendv, can also be about an earlier message: the first call that makes progress afterwards returns them,
 * once. After a task was lost, each fence, and each wait that would block, returns LAPI_ERR_PEER_LOST. A task that leaves without LAPI_Term
 * is lost to the tasks that it owes an answer. The last task to leave is lost to the one that remains.
 *
 * Collective calls: if LAPI_Gfence, LAPI_Term or LAPI_Address_init returns LAPI_ERR_TGT_PURGED, make the same call again, which resumes the
 * first one: the other tasks still wait in it. Do not wait for another task in between: it may wait for that call. If LAPI_Gfence was
 * interrupted, another collective call in its place makes the calls of the tasks that still wait fail; after the other two it returns
 * LAPI_ERR_RUNTIME. If the tasks are in different collective calls, all of these return LAPI_ERR_RUNTIME. See LAPI_Purge_totask.
 *
 * Threads: every call may be made from every thread of the task. A forked child is no task: its calls are LAPI_ERR_HNDL_INVALID.
 *
 * Profiling: every call has a second name, PLAPI_ in place of LAPI_. A program that defines LAPI_Put itself and calls PLAPI_Put in it
 * sees its own puts. That needs the shared library.
 *
 * C++: handlers have C linkage or not, as the compiler allows. An exception that leaves a handler, also an error handler, ends the job
 * through std::terminate, which prints the exception.
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
/* No call returns it: a header has one length, for which the code is LAPI_ERR_UHDR_LEN. */
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
/* No call returns these two: there is no utility call, and the texts are in the library. */
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
/* Of this library: a handler of a Rust program panicked. No handler in C does, and a C++ exception that leaves one ends the job. */
#define LAPI_ERR_HANDLER_PANICKED 902
/* Of this library: the memory at an address of the target cannot be reached. */
#define LAPI_ERR_BAD_ADDRESS 903
/* Of this library: the runtime reported an error. LAPI_Msg_string gives the text of the last such error that this thread got. */
#define LAPI_ERR_RUNTIME 904

/* What LAPI_Qenv and LAPI_Senv name */

typedef enum {
    TASK_ID = 0,
    NUM_TASKS = 1,
    MAX_UHDR_SZ = 2,
    MAX_DATA_SZ = 3,
    /* Reads back the value that was set. Arguments are checked in either case. */
    ERROR_CHK = 4,
    /* Seconds. Reads back the value that was set, which has no effect. */
    TIMEOUT = 5,
    MIN_TIMEOUT = 6,
    MAX_TIMEOUT = 7,
    /* 1: interrupt mode, the default. 0: polling mode. */
    INTERRUPT_SET = 8,
    /* 1. */
    MAX_PORTS = 9,
    /* Data of up to this many bytes always travels with the header of its message, so that `udata_one_pkt_ptr` is set. */
    MAX_PKT_SZ = 10,
    /* 0: nothing is sent twice. */
    NUM_REX_BUFS = 11,
    /* Data of up to this many bytes is always copied, so that the origin counter moves in the call. The same value as MAX_PKT_SZ. */
    REX_BUF_SZ = 12,
    /* Indexes of LAPI_Addr_set are below it. */
    LOC_ADDRTBL_SZ = 13,
    /* 14 to 17 and 19 are 0: this library has nothing of the kind. */
    EPOCH_NUM = 14,
    USE_THRESH = 15,
    RCV_FIFO_SIZE = 16,
    MAX_ATOM_SIZE = 17,
    /* As REX_BUF_SZ. */
    BUF_CP_SIZE = 18,
    MAX_PKTS_OUT = 19,
    /* 1 to 30, initially 30. Reads back the value that was set, which has no effect: this library acknowledges no packets. */
    ACK_THRESHOLD = 20
} lapi_query_t;

/* Handlers */

/* Runs at the target when the data of a message is in place. */
typedef void(compl_hndlr_t)(lapi_handle_t *hndl, void *completion_param);

/*
 * Runs at the target when a message arrives, and returns the address where its data goes. `msg_len` points to a lapi_return_info_t.
 * Must not block. In it, a LAPI call that communicates returns LAPI_ERR_IN_HANDLER. LAPI cannot detect that the place is too small. If the
 * place is in the first page, both ends get LAPI_ERR_BAD_ADDRESS. If it is any other address that is not memory, both ends get
 * LAPI_ERR_BAD_ADDRESS for more than 8 KiB of data; this task stores less data there, and the store kills the task.
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
    /* It is discarded. */
    LAPI_BURY_MSG = 1,
    /* The message is delivered again, to the header handler too. */
    LAPI_DROP_PKT = 2
} lapi_ctl_flags_t;

typedef int lapi_dg_handle_t;

/* What a header handler gets to know through `msg_len`, and what it answers. */
typedef struct {
    ulong msg_len;
    /* Not to be changed. */
    int MAGIC;
    lapi_ret_flags_t ret_flags;
    lapi_ctl_flags_t ctl_flags;
    /* Not to be used. */
    lapi_dg_handle_t dgsp_handle;
    /* Initially `msg_len`. If the header handler lowers it, only that many bytes of the data are stored. */
    ulong bytes;
    /* The task that sent the message. */
    int src;
    /* The data, if it came with the header; else null. It is not valid after the header handler has returned. */
    void *udata_one_pkt_ptr;
    ulong recv_offset;
} lapi_return_info_t;

/* What a send completion handler gets to know. */
typedef struct {
    /* The target of the transfer. */
    uint src;
    /* LAPI_SUCCESS, or the code with which the transfer failed: its target refused it, or is lost. */
    uint reason;
    ulong reserve[6];
} lapi_sh_info_t;

/*
 * Runs once at the origin, when the source of a transfer may be changed or the transfer has failed, in the call that made the
 * transfer or in one that makes progress. In it, calls that communicate or wait return LAPI_ERR_IN_HANDLER.
 */
typedef void(scompl_hndlr_t)(lapi_handle_t *hndl, void *completion_param, lapi_sh_info_t *info);

/* Vectors: places of memory whose data is moved together */

typedef enum {
    /* Lists of addresses and lengths, the same lengths at origin and target, pair by pair. */
    LAPI_GEN_IOVECTOR = 0,
    /* `info` is three words: address of the first block, bytes of a block, bytes from one block to the next. `len` is not read. */
    LAPI_GEN_STRIDED_XFER = 1,
    /* Lists of addresses and lengths. The places of the target have room for all the data, in pieces of any size. */
    LAPI_GEN_GENERIC = 2
} lapi_vectype_t;

typedef struct {
    lapi_vectype_t vec_type;
    uint num_vecs;
    void **info;
    ulong *len;
} lapi_vec_t;

/*
 * The header handler of a vector message. Gets the lengths of the origin's places, and returns the places of the data, or null if
 * nothing is to be stored.
 */
typedef lapi_vec_t *(vhdr_hndlr_t)(lapi_handle_t *hndl, void *uhdr, uint *uhdr_len, ulong *len_vec, compl_hndlr_t **comp_h,
                                   void **user_info);

/* The argument of LAPI_Init */

typedef enum { GET_ERR = 0, PUT_ERR = 1, RMW_ERR = 2, AM_ERR = 3, INT_ERR = 4, TMR_ERR = 5 } lapi_err_t;
/*
 * Runs when a call is about to return the code of an earlier message or of a failed task, LAPI_ERR_MEMORY_EXHAUSTED or
 * LAPI_ERR_RUNTIME, in the thread of that call. `err_type` is the kind of transfer, or INT_ERR if the error is not about a transfer. `src` is the task that failed,
 * refused the message or sent it, or -1 if the error is not about a task. A program without an error handler gets the code alone. The job
 * goes on in either case.
 */
typedef void(LAPI_err_hndlr)(lapi_handle_t *hndl, int *error_code, lapi_err_t *err_type, int *task_id, int *src);

typedef int lapi_dev_t;
typedef enum { L1_LIB = 0, L2_LIB = 1, L3_LIB = 2, L4_LIB = 3, LAST_LIB = 4 } lapi_lib_t;

/*
 * Fill it with zeros, then set fields that are marked "May be set". Ignored fields may have any value. If any other field is not zero,
 * LAPI_Init returns LAPI_ERR_INFO_NONZERO.
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
 * Collective. In a handler it returns LAPI_ERR_IN_HANDLER.
 */
int LAPI_Term(lapi_handle_t hndl);

int LAPI_Qenv(lapi_handle_t hndl, lapi_query_t query, int *ret_val);
/* Sets ERROR_CHK, TIMEOUT, INTERRUPT_SET or ACK_THRESHOLD. */
int LAPI_Senv(lapi_handle_t hndl, lapi_query_t query, int set_val);

/* Copies the text of a code to the LAPI_MAX_ERR_STRING bytes at `buf`. May be called before LAPI_Init. */
int LAPI_Msg_string(int error_code, void *buf);

/* Stores the address `my_addr` in `ret_addr`. May be called before LAPI_Init. */
int LAPI_Address(void *my_addr, ulong *ret_addr);

/* Every task gives an address, and `add_tab[i]` becomes that of task `i`. Collective; blocks. `my_addr` may be null. */
int LAPI_Address_init(lapi_handle_t hndl, void *my_addr, void *add_tab[]);
int LAPI_Address_init64(lapi_handle_t hndl, lapi_long_t my_addr, lapi_long_t *add_tab);

/*
 * Registers a header handler of this task under an index, 1 to LOC_ADDRTBL_SZ - 1, which LAPI_Amsend takes in place of an address. NULL
 * removes it. For an address where no task can have memory, as in the first page, it returns LAPI_ERR_HDR_HNDLR_NULL.
 */
int LAPI_Addr_set(lapi_handle_t hndl, void *addr, int addr_hndl);
/* The address under an index, null if there is none. */
int LAPI_Addr_get(lapi_handle_t hndl, void **addr, int addr_hndl);

/* Messages */

/*
 * Sends an active message. At task `tgt` the header handler `hdr_hdl`, an address there or an index of LAPI_Addr_set there, runs once,
 * and says where the data goes. Counters, each null or not, move by one: `tgt_cntr`, an address at the target, when the completion
 * handler has returned, or the data is in place if there is none; `org_cntr` when user header and data may be changed; `cmpl_cntr`
 * after `tgt_cntr`. Waits for room only. `uhdr_len` is a multiple of 4, up to MAX_UHDR_SZ. If `hdr_hdl` is no index, but an
 * address where no task can have memory, the call returns LAPI_ERR_HDR_HNDLR_NULL.
 */
int LAPI_Amsend(lapi_handle_t hndl, uint tgt, void *hdr_hdl, void *uhdr, uint uhdr_len, void *udata, ulong udata_len,
                lapi_cntr_t *tgt_cntr, lapi_cntr_t *org_cntr, lapi_cntr_t *cmpl_cntr);

/*
 * Copies `len` bytes at `org_addr` to address `tgt_addr` of task `tgt`. Counters as for LAPI_Amsend.
 *
 * Addresses at the target, in this call and in those below: if no task can have memory at an address, as in the first page, or the
 * address of a counter is not aligned, the call returns LAPI_ERR_BAD_ADDRESS. If any other address is not memory, a transfer of long data
 * fails with LAPI_ERR_BAD_ADDRESS, in the call or later at both ends. Long is more than 8 KiB, for LAPI_Get between tasks of one node with
 * cross-memory attach more than 2 KiB. Shorter data, variables of LAPI_Rmw and counters are not checked: the target accesses the
 * address, and the access kills it.
 */
int LAPI_Put(lapi_handle_t hndl, uint tgt, ulong len, void *tgt_addr, void *org_addr, lapi_cntr_t *tgt_cntr,
             lapi_cntr_t *org_cntr, lapi_cntr_t *cmpl_cntr);

/*
 * Copies `len` bytes at address `tgt_addr` of task `tgt` to `org_addr`. `org_cntr` moves when the data is here, `tgt_cntr`, an address
 * at the target, when the memory there may be changed.
 */
int LAPI_Get(lapi_handle_t hndl, uint tgt, ulong len, void *tgt_addr, void *org_addr, lapi_cntr_t *tgt_cntr,
             lapi_cntr_t *org_cntr);

/*
 * The same with vectors. Both vectors are in this task's memory; the addresses in `tgt_vec` are the target's. Each counter moves once, when
 * its condition holds for all the data.
 */
int LAPI_Amsendv(lapi_handle_t hndl, uint tgt, void *hdr_hdl, void *uhdr, uint uhdr_len, lapi_vec_t *org_vec,
                 lapi_cntr_t *tgt_cntr, lapi_cntr_t *org_cntr, lapi_cntr_t *cmpl_cntr);
int LAPI_Putv(lapi_handle_t hndl, uint tgt, lapi_vec_t *tgt_vec, lapi_vec_t *org_vec, lapi_cntr_t *tgt_cntr,
              lapi_cntr_t *org_cntr, lapi_cntr_t *cmpl_cntr);
int LAPI_Getv(lapi_handle_t hndl, uint tgt, lapi_vec_t *tgt_vec, lapi_vec_t *org_vec, lapi_cntr_t *tgt_cntr,
              lapi_cntr_t *org_cntr);

typedef enum { FETCH_AND_ADD = 0, FETCH_AND_OR = 1, SWAP = 2, COMPARE_AND_SWAP = 3 } RMW_ops_t;

/*
 * An atomic operation on the `int` at address `tgt_var` of task `tgt`. COMPARE_AND_SWAP has two operands at `in_val`: the value to
 * compare with and the new one. When `org_cntr` has moved, `prev_tgt_val`, if it is not null, has the previous value; for
 * COMPARE_AND_SWAP it has 1 if the values were equal and 0 if not.
 */
int LAPI_Rmw(lapi_handle_t hndl, RMW_ops_t op, uint tgt, int *tgt_var, int *in_val, int *prev_tgt_val,
             lapi_cntr_t *org_cntr);
int LAPI_Rmw64(lapi_handle_t hndl, RMW_ops_t op, uint tgt, lapi_rmw64_t *tgt_var, lapi_rmw64_t *in_val,
               lapi_rmw64_t *prev_tgt_val, lapi_cntr_t *org_cntr);

/* Any transfer by one call */

typedef enum {
    LAPI_GET_XFER = 0,
    LAPI_AM_XFER = 1,
    LAPI_PUT_XFER = 2,
    LAPI_GETV_XFER = 3,
    LAPI_PUTV_XFER = 4,
    LAPI_AMV_XFER = 5,
    LAPI_RMW_XFER = 6,
    /* For this type and the next, LAPI_AMX_XFER and LAPI_MC_XFER the call returns LAPI_ERR_XFER_CMD. */
    LAPI_DGSP_XFER = 7,
    LAPI_RDMA_XFER = 8,
    /* A lapi_am_t: user header and data are up to 128 bytes together, the header handler is an index, and no counter moves. */
    LAPI_AM_LW_XFER = 9,
    LAPI_AMX_XFER = 10,
    LAPI_MC_XFER = 11,
    LAPI_LAST_XFER = 12
} lapi_xfer_type_t;

/*
 * Fields have the meaning of the direct call's arguments. `flags` are hints, which are ignored. With a handler the origin counter is
 * not used: `shdlr` runs when the source may be changed, `chndlr` when the data is here.
 */
typedef struct {
    lapi_xfer_type_t Xfer_type;
    int flags;
    uint tgt;
    uint pad;
    lapi_long_t tgt_addr;
    void *org_addr;
    ulong len;
    lapi_long_t tgt_cntr;
    lapi_cntr_t *org_cntr;
    compl_hndlr_t *chndlr;
    void *cinfo;
} lapi_get_t;

typedef struct {
    lapi_xfer_type_t Xfer_type;
    int flags;
    uint tgt;
    uint pad;
    lapi_long_t hdr_hdl;
    uint uhdr_len;
    void *uhdr;
    void *udata;
    ulong udata_len;
    scompl_hndlr_t *shdlr;
    void *sinfo;
    lapi_long_t tgt_cntr;
    lapi_cntr_t *org_cntr;
    lapi_cntr_t *cmpl_cntr;
} lapi_am_t;

typedef struct {
    lapi_xfer_type_t Xfer_type;
    int flags;
    uint tgt;
    uint pad;
    lapi_long_t tgt_addr;
    void *org_addr;
    ulong len;
    scompl_hndlr_t *shdlr;
    void *sinfo;
    lapi_long_t tgt_cntr;
    lapi_cntr_t *org_cntr;
    lapi_cntr_t *cmpl_cntr;
} lapi_put_t;

typedef struct {
    lapi_xfer_type_t Xfer_type;
    int flags;
    uint tgt;
    uint pad;
    lapi_vec_t *org_vec;
    /* A lapi_vec_t of this task. */
    void *tgt_vec;
    lapi_long_t tgt_cntr;
    lapi_cntr_t *org_cntr;
    compl_hndlr_t *chndlr;
    void *cinfo;
} lapi_getv_t;

typedef struct {
    lapi_xfer_type_t Xfer_type;
    int flags;
    uint tgt;
    uint pad;
    scompl_hndlr_t *shdlr;
    void *sinfo;
    lapi_vec_t *org_vec;
    /* A lapi_vec_t of this task. */
    void *tgt_vec;
    lapi_long_t tgt_cntr;
    lapi_cntr_t *org_cntr;
    lapi_cntr_t *cmpl_cntr;
} lapi_putv_t;

typedef struct {
    lapi_xfer_type_t Xfer_type;
    int flags;
    uint tgt;
    uint pad;
    lapi_long_t hdr_hdl;
    uint uhdr_len;
    void *uhdr;
    scompl_hndlr_t *shdlr;
    void *sinfo;
    lapi_vec_t *org_vec;
    lapi_long_t tgt_cntr;
    lapi_cntr_t *org_cntr;
    lapi_cntr_t *cmpl_cntr;
} lapi_amv_t;

typedef struct {
    lapi_xfer_type_t Xfer_type;
    RMW_ops_t op;
    uint tgt;
    /* Bits of the variable: 32 or 64. */
    uint size;
    lapi_long_t tgt_var;
    void *in_val;
    void *prev_tgt_val;
    lapi_cntr_t *org_cntr;
    /* Runs when the result is here. */
    scompl_hndlr_t *shdlr;
    void *sinfo;
} lapi_rmw_t;

typedef union {
    lapi_xfer_type_t Xfer_type;
    lapi_get_t Get;
    lapi_am_t Am;
    lapi_rmw_t Rmw;
    lapi_put_t Put;
    lapi_getv_t Getv;
    lapi_putv_t Putv;
    lapi_amv_t Amv;
} lapi_xfer_t;

/* Does the transfer of the member that `Xfer_type` names. Reads every field of that member, and changes none. */
int LAPI_Xfer(lapi_handle_t hndl, lapi_xfer_t *xfer_cmd);

/* Counters and progress */

int LAPI_Setcntr(lapi_handle_t hndl, lapi_cntr_t *cntr, int val);

/* The states of LAPI_Setcntr_wstatus. */
#define LAPI_MSG_INITIAL 0
#define LAPI_MSG_RECVD 1
#define LAPI_MSG_PURGED 2
#define LAPI_MSG_PURGED_RCVD 3
#define LAPI_MSG_INVALID 4
/*
 * Sets a counter to 0, and names the `num_dest` tasks at `dest_list` whose messages it waits for. From now on `dest_status[i]` is the
 * state of task `dest_list[i]`, until LAPI_Setcntr, or a LAPI_Nopoll_wait that succeeds. A wait for the counter ends with
 * LAPI_ERR_PEER_LOST if a task of the list has left and the counter cannot reach the value without its message.
 */
int LAPI_Setcntr_wstatus(lapi_handle_t hndl, lapi_cntr_t *cntr, int num_dest, uint *dest_list, int *dest_status);
/*
 * As LAPI_Waitcntr, but in interrupt mode it sleeps, and makes no progress itself. Only one thread at a time may wait for a counter by this
 * call. It works with any `lib_vers`.
 */
int LAPI_Nopoll_wait(lapi_handle_t hndl, lapi_cntr_t *cntr_ptr, int val, int *cur_cntr_val);

/* Makes progress once, and stores the counter's value in `val`. */
int LAPI_Getcntr(lapi_handle_t hndl, lapi_cntr_t *cntr, int *val);
/* Makes progress until the counter is at least `val`, subtracts `val`, and stores what is left in `cur_cntr_val`, if not null. */
int LAPI_Waitcntr(lapi_handle_t hndl, lapi_cntr_t *cntr, int val, int *cur_cntr_val);
/* Makes progress once. */
int LAPI_Probe(lapi_handle_t hndl);

/* Bits of the status of LAPI_Msgpoll. */
typedef uint lapi_msg_state_t;
#define LAPI_SEND_COMPLETE 0x1
#define LAPI_RECV_COMPLETE 0x2
#define LAPI_BOTH_COMPLETE 0x3
/* Another thread makes progress. */
#define LAPI_POLLING_NET 0x4
/* All rounds are over, and nothing was done in them. */
#define LAPI_DISP_CNTR 0x8
typedef struct {
    lapi_msg_state_t status;
    ulong reserve[10];
} lapi_msg_info_t;
/* Makes progress up to `cnt` times, until something is done, and stores in `info` what was done. */
int LAPI_Msgpoll(lapi_handle_t hndl, uint cnt, lapi_msg_info_t *info);

/* Waits until everything that this task has sent is in place at its targets. Does not wait for completion handlers. */
int LAPI_Fence(lapi_handle_t hndl);
/* A fence of every task, and a barrier. Collective. */
int LAPI_Gfence(lapi_handle_t hndl);

/*
 * From now on calls that would send to task `dest`, also those that wait for room, return LAPI_ERR_TGT_PURGED. Local. It also ends calls of
 * other threads with that code: waits for counters, and LAPI_Gfence, LAPI_Term and LAPI_Address_init, which resume when the same call is
 * made again. LAPI_Fence does not wait for the task, and returns that code if the task has not answered. Messages that were sent before
 * still arrive.
 */
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
int PLAPI_Amsendv(lapi_handle_t hndl, uint tgt, void *hdr_hdl, void *uhdr, uint uhdr_len, lapi_vec_t *org_vec,
                  lapi_cntr_t *tgt_cntr, lapi_cntr_t *org_cntr, lapi_cntr_t *cmpl_cntr);
int PLAPI_Putv(lapi_handle_t hndl, uint tgt, lapi_vec_t *tgt_vec, lapi_vec_t *org_vec, lapi_cntr_t *tgt_cntr,
               lapi_cntr_t *org_cntr, lapi_cntr_t *cmpl_cntr);
int PLAPI_Getv(lapi_handle_t hndl, uint tgt, lapi_vec_t *tgt_vec, lapi_vec_t *org_vec, lapi_cntr_t *tgt_cntr,
               lapi_cntr_t *org_cntr);
int PLAPI_Rmw(lapi_handle_t hndl, RMW_ops_t op, uint tgt, int *tgt_var, int *in_val, int *prev_tgt_val,
              lapi_cntr_t *org_cntr);
int PLAPI_Rmw64(lapi_handle_t hndl, RMW_ops_t op, uint tgt, lapi_rmw64_t *tgt_var, lapi_rmw64_t *in_val,
                lapi_rmw64_t *prev_tgt_val, lapi_cntr_t *org_cntr);
int PLAPI_Xfer(lapi_handle_t hndl, lapi_xfer_t *xfer_cmd);
int PLAPI_Setcntr(lapi_handle_t hndl, lapi_cntr_t *cntr, int val);
int PLAPI_Setcntr_wstatus(lapi_handle_t hndl, lapi_cntr_t *cntr, int num_dest, uint *dest_list, int *dest_status);
int PLAPI_Nopoll_wait(lapi_handle_t hndl, lapi_cntr_t *cntr_ptr, int val, int *cur_cntr_val);
int PLAPI_Getcntr(lapi_handle_t hndl, lapi_cntr_t *cntr, int *val);
int PLAPI_Waitcntr(lapi_handle_t hndl, lapi_cntr_t *cntr, int val, int *cur_cntr_val);
int PLAPI_Probe(lapi_handle_t hndl);
int PLAPI_Msgpoll(lapi_handle_t hndl, uint cnt, lapi_msg_info_t *info);
int PLAPI_Fence(lapi_handle_t hndl);
int PLAPI_Gfence(lapi_handle_t hndl);
int PLAPI_Purge_totask(lapi_handle_t hndl, uint dest);
int PLAPI_Resume_totask(lapi_handle_t hndl, uint dest);

#ifdef __cplusplus
}
#endif

#endif
