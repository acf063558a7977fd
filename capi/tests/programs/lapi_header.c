/* What lapi.h declares: numbers, fields, types of calls. Compiles as C99 and as C++98, or not. */
#include <lapi.h>

#include <stddef.h>

#define IS(name, condition) typedef char is_##name[(condition) ? 1 : -1]

IS(rmw, FETCH_AND_ADD == 0 && FETCH_AND_OR == 1 && SWAP == 2 && COMPARE_AND_SWAP == 3);
IS(queries, TASK_ID == 0 && NUM_TASKS == 1 && MAX_UHDR_SZ == 2 && MAX_DATA_SZ == 3 && ERROR_CHK == 4 && TIMEOUT == 5);
IS(more_queries, MIN_TIMEOUT == 6 && MAX_TIMEOUT == 7 && INTERRUPT_SET == 8 && MAX_PORTS == 9 && MAX_PKT_SZ == 10);
IS(last_queries, LOC_ADDRTBL_SZ == 13 && ACK_THRESHOLD == 20);
IS(flags, LAPI_DELIVER_MSG == 0 && LAPI_BURY_MSG == 1 && LAPI_DROP_PKT == 2);
IS(returns, LAPI_NORMAL == 0 && LAPI_LOCAL_STATE == 1 && LAPI_SEND_REPLY == 2);
IS(handle, sizeof(lapi_handle_t) == sizeof(unsigned int) && (lapi_handle_t)-1 > 0);
IS(counter, sizeof(lapi_cntr_t) == sizeof(int));
IS(longs, sizeof(lapi_long_t) == 8 && LAPI_MAX_MSG_SZ == ~0UL >> 1);

/* The order of the fields, and their places, which `return_info` in lapi_c.rs has too. */
IS(info_1, offsetof(lapi_return_info_t, msg_len) == 0 && offsetof(lapi_return_info_t, MAGIC) == 8);
IS(info_2, offsetof(lapi_return_info_t, ret_flags) == 12 && offsetof(lapi_return_info_t, ctl_flags) == 16);
IS(info_3, offsetof(lapi_return_info_t, dgsp_handle) == 20 && offsetof(lapi_return_info_t, bytes) == 24);
IS(info_4, offsetof(lapi_return_info_t, src) == 32 && offsetof(lapi_return_info_t, udata_one_pkt_ptr) == 40);
IS(info_5, offsetof(lapi_return_info_t, recv_offset) == 48 && sizeof(lapi_return_info_t) == 56);
IS(init_info, offsetof(lapi_info_t, err_hndlr) == 24 && sizeof(lapi_info_t) == 56);

/* L1: counters in the order target, origin, completion; handlers as the reference has them. */
typedef int (*amsend_t)(lapi_handle_t hndl, unsigned int tgt, void *hdr_hdl, void *uhdr, unsigned int uhdr_len, void *udata,
                        unsigned long udata_len, lapi_cntr_t *tgt_cntr, lapi_cntr_t *org_cntr, lapi_cntr_t *cmpl_cntr);
typedef int (*put_t)(lapi_handle_t, unsigned int, unsigned long, void *, void *, lapi_cntr_t *, lapi_cntr_t *, lapi_cntr_t *);
typedef int (*get_t)(lapi_handle_t, unsigned int, unsigned long, void *, void *, lapi_cntr_t *, lapi_cntr_t *);
typedef int (*rmw_t)(lapi_handle_t, RMW_ops_t, unsigned int, int *, int *, int *, lapi_cntr_t *);
typedef void *(*header_handler_t)(lapi_handle_t *, void *, unsigned int *, unsigned long *, compl_hndlr_t **, void **);
typedef void (*completion_handler_t)(lapi_handle_t *, void *);

amsend_t amsend = LAPI_Amsend, profiled_amsend = PLAPI_Amsend;
put_t put = LAPI_Put, profiled_put = PLAPI_Put;
get_t get = LAPI_Get, profiled_get = PLAPI_Get;
rmw_t rmw = LAPI_Rmw, profiled_rmw = PLAPI_Rmw;
int (*init)(lapi_handle_t *, lapi_info_t *) = LAPI_Init;
int (*text)(int, void *) = LAPI_Msg_string;
int (*waitcntr)(lapi_handle_t, lapi_cntr_t *, int, int *) = LAPI_Waitcntr;

header_handler_t header_handler(hdr_hndlr_t *handler);
completion_handler_t completion_handler(compl_hndlr_t *handler);

header_handler_t header_handler(hdr_hndlr_t *handler) { return handler; }
completion_handler_t completion_handler(compl_hndlr_t *handler) { return handler; }
