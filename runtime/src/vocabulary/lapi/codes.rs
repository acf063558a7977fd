//! The codes that calls return, with their texts.

use super::failure::{Failure, What};
use crate::error::Error;
use crate::vocabulary::code_table::codes;

codes! {
    SUCCESS = 0, "The call succeeded.";
    ALL_HNDL_IN_USE = 401, "All handles are in use: call LAPI_Term of one first.";
    INFO_NULL = 405, "The pointer to lapi_info_t is NULL.";
    HDR_HNDLR_NULL = 409, "The header handler is NULL, or neither an index nor an address where a task can have a function.";
    HNDL_INVALID = 417, "The handle is not valid: LAPI_Init did not make it, or LAPI_Term ended it.";
    RET_PTR_NULL = 418, "The pointer for the result is NULL.";
    ADDR_HNDL_RANGE = 419, "The index is outside the address table: 1 <= index < LOC_ADDRTBL_SZ.";
    ADDR_TBL_NULL = 420, "The table of addresses is NULL.";
    TGT_PURGED = 421, "The target task is purged: LAPI_Resume_totask enables it again.";
    MULTIPLE_WAITERS = 422, "Another thread waits for this counter.";
    MEMORY_EXHAUSTED = 423, "There is not enough memory.";
    INFO_NONZERO = 424, "A field of lapi_info_t is not zero.";
    ORG_ADDR_NULL = 425, "The address at the origin is NULL, and the length is not 0.";
    TGT_ADDR_NULL = 426, "The address at the target is NULL, and the length is not 0.";
    DATA_LEN = 427, "The length is above LAPI_MAX_MSG_SZ.";
    TGT = 428, "The target is no task of this job: 0 <= tgt < NUM_TASKS.";
    UHDR_NULL = 429, "The user header is NULL, and its length is not 0.";
    UHDR_LEN = 430, "The length of the user header is above MAX_UHDR_SZ or no multiple of 4.";
    /// No call returns it: [`UHDR_LEN`] tells of the one length that a header has.
    HDR_LEN = 431, "The length of the header is not valid.";
    ORG_EXTENT = 432, "The extent of the origin's strided vector is above LAPI_MAX_MSG_SZ.";
    ORG_STRIDE = 433, "The stride of the origin's vector is below its block size.";
    ORG_VEC_ADDR = 440, "An address of the origin's vector is NULL, and its length is not 0.";
    ORG_VEC_LEN = 441, "The sum of the lengths of the origin's vector is above LAPI_MAX_MSG_SZ.";
    ORG_VEC_NULL = 442, "The origin's vector is NULL.";
    ORG_VEC_TYPE = 443, "The type of the origin's vector is not valid.";
    STRIDE_ORG_ADDR_NULL = 444, "The base address of the origin's strided vector is NULL.";
    STRIDE_TGT_ADDR_NULL = 445, "The base address of the target's strided vector is NULL.";
    TGT_EXTENT = 446, "The extent of the target's strided vector is above LAPI_MAX_MSG_SZ.";
    TGT_STRIDE = 447, "The stride of the target's vector is below its block size.";
    TGT_VEC_ADDR = 448, "An address of the target's vector is NULL, and its length is not 0.";
    TGT_VEC_LEN = 449, "The sum of the lengths of the target's vector is above LAPI_MAX_MSG_SZ.";
    TGT_VEC_NULL = 451, "The target's vector is NULL.";
    TGT_VEC_TYPE = 452, "The type of the target's vector is not valid.";
    VEC_NUM_DIFF = 453, "The vectors of origin and target have different numbers of parts.";
    VEC_TYPE_DIFF = 454, "The vectors of origin and target are of different types.";
    VEC_LEN_DIFF = 455, "The vectors of origin and target have different lengths.";
    MSG_INFO_NULL = 456, "The pointer to lapi_msg_info_t is NULL.";
    CNTR_NULL = 458, "The counter is NULL.";
    CNTR_VAL = 459, "The value to wait for is not above 0.";
    QUERY_TYPE = 460, "The query is not known, or what it names cannot be set.";
    IN_VAL_NULL = 461, "The pointer to the operand of an atomic operation is NULL.";
    RMW_OP = 462, "The atomic operation is not known.";
    TGT_VAR_NULL = 463, "The address of the target's variable is NULL.";
    SET_VAL = 464, "The value is not valid for what is set.";
    OP_SZ = 474, "The size or alignment of the operand is not valid for an atomic operation.";
    XFER_CMD = 476, "The type of the transfer is not known.";
    /// No call returns it: there is no utility call.
    UTIL_CMD = 477, "The type of the utility call is not known.";
    /// No call returns it: the texts are in the library.
    CATALOG_FAIL = 478, "The catalog of messages cannot be opened.";
    INVALID_SEND_REPLY_TGT = 501, "An inline completion handler may send to the source of its message only.";
    LW_DATA_LEN = 515, "The data is too long for a lightweight active message.";
    NO_HNDLR_SET = 516, "No header handler is set at this index at the target.";
    CODE_UNKNOWN = 519, "The code is not known.";
    IN_HANDLER = 900, "A header handler or an inline completion handler must not make this call.";
    PEER_LOST = 901, "A task failed or left the job.";
    /// Of handlers in Rust. A C++ exception that leaves a handler ends the job.
    HANDLER_PANICKED = 902, "A handler panicked.";
    BAD_ADDRESS = 903, "The memory at this address of the target cannot be reached.";
    RUNTIME = 904, "The runtime reported an error; its text is in the log.";
}

/// The code that stands for an error of the runtime, which is logged and kept.
#[cold]
pub(super) fn of_error(error: &Error) -> i32 {
    Failure::of_error(error).keep()
}

/// As [`of_error`], of a transfer.
#[cold]
pub(super) fn of_error_of(what: What, error: &Error) -> i32 {
    Failure { what, ..Failure::of_error(error) }.keep()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_have_texts() {
        for (place, (number, name, text)) in CODES.iter().enumerate() {
            assert!(CODES[place + 1..].iter().all(|(other, ..)| other != number), "{name}");
            assert!(text.ends_with('.'), "{name}");
        }
        assert_eq!(text(417), Some(CODES.iter().find(|code| code.1 == "HNDL_INVALID").expect("there").2));
        assert_eq!((text(1), text(-1), text(400)), (None, None, None));
    }
}
