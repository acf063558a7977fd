//! Groups, barrier, reductions.

use std::ffi::{c_int, c_uint, c_void};

use bellwether_runtime::vocabulary::gaspi::{
    ALLREDUCE_BUF_SIZE, ALLREDUCE_ELEM_MAX, Code, Datatype, Operation, Result, Timeout, codes,
};

use super::life::{waiting, working};
use super::{calls, check, store};

/// Most bytes of a reduction.
const MOST: usize = ALLREDUCE_BUF_SIZE as usize;
const _: () =
    assert!(MOST == 8 * ALLREDUCE_ELEM_MAX as usize, "the largest elements of `gaspi_allreduce` have 8 bytes");

/// Elements of a reduction, aligned for every type.
#[repr(align(64))]
struct Elements([u8; MOST]);

impl Elements {
    /// # Safety
    /// `from` is valid for reading `len` bytes; `len` is at most [`MOST`].
    unsafe fn read(from: *const c_void, len: usize) -> Elements {
        let mut elements = Elements([0; MOST]);
        // SAFETY: the caller guarantees it.
        unsafe { std::ptr::copy_nonoverlapping(from.cast(), elements.0.as_mut_ptr(), len) };
        elements
    }
}

/// `gaspi_reduce_operation_t`. An exception that leaves it ends the process: Rust does not catch exceptions of other languages.
type Function = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *mut c_void, *mut c_void, u32, u64, u64) -> c_int;

fn operation(number: c_uint) -> Result<Operation> {
    let all = [Operation::Min, Operation::Max, Operation::Sum];
    all.get(number as usize).copied().ok_or(Code(codes::ERROR))
}

fn datatype(number: c_uint) -> Result<Datatype> {
    let all = [Datatype::Int, Datatype::Uint, Datatype::Float, Datatype::Double, Datatype::Long, Datatype::Ulong];
    all.get(number as usize).copied().ok_or(Code(codes::ERROR))
}

calls! {
    gaspi_group_create, pgaspi_group_create(group: *mut u8) {
        let process = working()?;
        // Check first: otherwise there would be a group whose number the program does not get.
        check([group.cast_const().cast()])?;
        // SAFETY: not null, and valid by the caller.
        unsafe { store(group, process.group_create()?) }
    }

    gaspi_group_add, pgaspi_group_add(group: u8, rank: u16) { working()?.group_add(group, rank) }

    gaspi_group_commit, pgaspi_group_commit(group: u8, timeout: u64) {
        waiting(|process| process.group_commit(group, Timeout::from_millis(timeout)))
    }

    gaspi_group_delete, pgaspi_group_delete(group: u8) { working()?.group_delete(group) }

    gaspi_group_num, pgaspi_group_num(number: *mut u32) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(number, working()?.group_num()?) }
    }

    gaspi_group_size, pgaspi_group_size(group: u8, size: *mut u32) {
        let process = working()?;
        check([size.cast_const().cast()])?;
        // SAFETY: not null, and valid by the caller.
        unsafe { store(size, process.group_ranks(group)?.len() as u32) }
    }

    gaspi_group_ranks, pgaspi_group_ranks(group: u8, ranks: *mut u16) {
        let process = working()?;
        check([ranks.cast_const().cast()])?;
        for (member, rank) in process.group_ranks(group)?.into_iter().enumerate() {
            // SAFETY: not null; the caller guarantees room for each member.
            unsafe { ranks.add(member).write_unaligned(rank) };
        }
        Ok(())
    }

    gaspi_barrier, pgaspi_barrier(group: u8, timeout: u64) {
        waiting(|process| process.barrier(group, Timeout::from_millis(timeout)))
    }

    gaspi_allreduce, pgaspi_allreduce(
        send: *const c_void,
        receive: *mut c_void,
        number: u32,
        op: c_uint,
        kind: c_uint,
        group: u8,
        timeout: u64,
    ) {
        waiting(|process| {
            check([send.cast(), receive.cast_const().cast()])?;
            let (op, kind) = (operation(op)?, datatype(kind)?);
            if number > ALLREDUCE_ELEM_MAX {
                return Err(Code(codes::INV_NUM));
            }
            let len = number as usize * kind.size();
            // SAFETY: not null, and the caller guarantees that it is valid for `len` bytes, which the check above limits.
            let elements = unsafe { Elements::read(send, len) };
            let mut result = [0; MOST];
            let timeout = Timeout::from_millis(timeout);
            process.allreduce(&elements.0[..len], &mut result[..len], op, kind, group, timeout)?;
            // SAFETY: the caller guarantees room for the result.
            unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), receive.cast(), len) };
            Ok(())
        })
    }

    gaspi_allreduce_user, pgaspi_allreduce_user(
        send: *const c_void,
        receive: *mut c_void,
        number: u32,
        size: u64,
        function: Option<Function>,
        state: *mut c_void,
        group: u8,
        millis: u64,
    ) {
        waiting(|process| {
            check([send.cast(), receive.cast_const().cast()])?;
            let function = function.ok_or(Code(codes::NULLPTR))?;
            if number == 0 || number > ALLREDUCE_ELEM_MAX {
                return Err(Code(codes::INV_NUM));
            }
            let len = u64::from(number).checked_mul(size).filter(|len| (1..=ALLREDUCE_BUF_SIZE).contains(len));
            let len = len.ok_or(Code(codes::INV_SIZE))? as usize;
            // SAFETY: not null, and the caller guarantees that it is valid for `len` bytes, which the check above limits.
            let elements = unsafe { Elements::read(send, len) };
            let mut result = [0; MOST];
            let combine = |mine: &mut [u8], theirs: &[u8]| {
                if mine.len() != len || theirs.len() != len {
                    return Err(Code(codes::INV_SIZE));
                }
                // SAFETY: both have `len` bytes.
                let (one, two) =
                    unsafe { (Elements::read(mine.as_ptr().cast(), len), Elements::read(theirs.as_ptr().cast(), len)) };
                let (mut one, mut two, mut both) = (one, two, Elements([0; MOST]));
                let [first, second, out] = [&mut one, &mut two, &mut both].map(|e| e.0.as_mut_ptr().cast::<c_void>());
                // SAFETY: the program's function, which takes operands and a result of `number` elements of `size` bytes.
                let code = unsafe { function(first, second, out, state, number, size, millis) };
                mine.copy_from_slice(&both.0[..len]);
                if code == codes::SUCCESS { Ok(()) } else { Err(Code(code)) }
            };
            let timeout = Timeout::from_millis(millis);
            process.allreduce_user(&elements.0[..len], &mut result[..len], size as usize, group, timeout, combine)?;
            // SAFETY: the caller guarantees room for the result.
            unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), receive.cast(), len) };
            Ok(())
        })
    }
}
