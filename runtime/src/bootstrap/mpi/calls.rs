//! The few MPI functions that starting needs, with their return codes checked.

use std::ffi::{c_char, c_int, c_void};

use ::mpi::ffi::{self, MPI_Comm, MPI_Request};
use bytemuck::{Pod, bytes_of, bytes_of_mut};

use crate::error::{Error, Result};

/// Turns a return code into [`Error::Mpi`], with MPI's own words for it.
pub(super) fn check(call: &'static str, code: c_int) -> Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length = 0;
    // SAFETY: the buffer is as long as the standard asks for.
    let told = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &raw mut length) };
    let text = match usize::try_from(length) {
        Ok(length) if told == ffi::MPI_SUCCESS as c_int && length <= text.len() => {
            String::from_utf8_lossy(&text[..length]).into_owned()
        }
        _ => "MPI has no text for this code".into(),
    };
    Err(Error::Mpi { call, code, text })
}

/// Calls one of MPI's functions that set a flag.
pub(super) fn flag(call: &'static str, function: impl FnOnce(*mut c_int) -> c_int) -> Result<bool> {
    let mut flag = 0;
    check(call, function(&raw mut flag))?;
    Ok(flag != 0)
}

/// A communicator of our own, on which errors come back as codes.
#[derive(Debug)]
pub(super) struct Communicator(MPI_Comm);

impl Communicator {
    /// Duplicates `original`. Collective over it.
    ///
    /// # Safety
    /// `original` is a valid communicator, and MPI is initialised.
    pub(super) unsafe fn duplicate(original: MPI_Comm) -> Result<Communicator> {
        // SAFETY: the caller's promise.
        if flag("MPI_Comm_test_inter", |flag| unsafe { ffi::MPI_Comm_test_inter(original, flag) })? {
            return Err(Error::InvalidArgument {
                operation: "from_mpi",
                why: "an inter-communicator has two groups of ranks; merge them first (MPI_Intercomm_merge)".into(),
            });
        }
        let mut ours = Communicator(original);
        // SAFETY: the caller's promise.
        check("MPI_Comm_dup", unsafe { ffi::MPI_Comm_dup(original, &raw mut ours.0) })?;
        // SAFETY: a communicator that was just made.
        check("MPI_Comm_set_errhandler", unsafe { ffi::MPI_Comm_set_errhandler(ours.0, ffi::RSMPI_ERRORS_RETURN) })?;
        Ok(ours)
    }

    /// The ranks that give the same `part`, in their order, as a communicator. Collective.
    pub(super) fn split(&self, part: usize) -> Result<Communicator> {
        let mut ours = Communicator(self.0);
        // SAFETY: the communicator is ours; ranks of equal keys keep their order.
        check("MPI_Comm_split", unsafe { ffi::MPI_Comm_split(self.0, part as c_int, 0, &raw mut ours.0) })?;
        // SAFETY: a communicator that was just made.
        check("MPI_Comm_set_errhandler", unsafe { ffi::MPI_Comm_set_errhandler(ours.0, ffi::RSMPI_ERRORS_RETURN) })?;
        Ok(ours)
    }

    pub(super) fn rank(&self) -> Result<usize> {
        let mut rank = 0;
        // SAFETY: the communicator is ours until it is freed.
        check("MPI_Comm_rank", unsafe { ffi::MPI_Comm_rank(self.0, &raw mut rank) })?;
        Ok(rank as usize)
    }

    pub(super) fn size(&self) -> Result<usize> {
        let mut size = 0;
        // SAFETY: as in `rank`.
        check("MPI_Comm_size", unsafe { ffi::MPI_Comm_size(self.0, &raw mut size) })?;
        Ok(size as usize)
    }

    /// Copies `value` of rank `root` to all.
    pub(super) fn broadcast<T: Pod>(&self, root: usize, value: &mut T) -> Result<()> {
        let bytes = bytes_of_mut(value);
        // SAFETY: the buffer has that many bytes, on every rank.
        check("MPI_Bcast", unsafe {
            ffi::MPI_Bcast(start(bytes), bytes.len() as c_int, ffi::RSMPI_UINT8_T, root as c_int, self.0)
        })
    }

    /// Everyone's `value`, in the order of the ranks.
    pub(super) fn allgather<T: Pod>(&self, value: &T) -> Result<Vec<T>> {
        self.begin_allgather(value)?.wait()
    }

    /// Begins an allgather, so that others can be served until it is done.
    pub(super) fn begin_allgather<T: Pod>(&self, value: &T) -> Result<Gathering<T>> {
        let length = size_of::<T>() as c_int;
        let mut gathering = Gathering {
            mine: bytes_of(value).into(),
            all: vec![T::zeroed(); self.size()?],
            // SAFETY: a constant of MPI's.
            request: unsafe { ffi::RSMPI_REQUEST_NULL },
            done: true,
        };
        let all = start(bytemuck::cast_slice_mut(&mut gathering.all));
        // SAFETY: both buffers are long enough, and stay where they are until the request is done.
        check("MPI_Iallgather", unsafe {
            ffi::MPI_Iallgather(
                gathering.mine.as_ptr().cast(),
                length,
                ffi::RSMPI_UINT8_T,
                all,
                length,
                ffi::RSMPI_UINT8_T,
                self.0,
                &raw mut gathering.request,
            )
        })?;
        gathering.done = false;
        Ok(gathering)
    }

    /// Gives it back. Collective.
    pub(super) fn free(mut self) -> Result<()> {
        // SAFETY: ours, freed once.
        check("MPI_Comm_free", unsafe { ffi::MPI_Comm_free(&raw mut self.0) })
    }
}

fn start(bytes: &mut [u8]) -> *mut c_void {
    bytes.as_mut_ptr().cast()
}

/// An allgather on its way. It owns its buffers, because MPI writes to them until it is done.
pub(super) struct Gathering<T> {
    mine: Box<[u8]>,
    all: Vec<T>,
    request: MPI_Request,
    done: bool,
}

impl<T> Gathering<T> {
    /// Makes progress, and tells whether everyone's value is here.
    pub(super) fn test(&mut self) -> Result<bool> {
        if !self.done {
            let request = &raw mut self.request;
            // SAFETY: a request that is not done, with its buffers in place.
            self.done = flag("MPI_Test", |flag| unsafe { ffi::MPI_Test(request, flag, ffi::RSMPI_STATUS_IGNORE) })?;
        }
        Ok(self.done)
    }

    /// Waits for everyone's value.
    pub(super) fn wait(mut self) -> Result<Vec<T>> {
        if !self.done {
            // SAFETY: as in `test`.
            check("MPI_Wait", unsafe { ffi::MPI_Wait(&raw mut self.request, ffi::RSMPI_STATUS_IGNORE) })?;
            self.done = true;
        }
        Ok(std::mem::take(&mut self.all))
    }
}

impl<T> Drop for Gathering<T> {
    fn drop(&mut self) {
        if !self.done {
            // MPI still writes there, and there is no telling until when.
            std::mem::forget((std::mem::take(&mut self.mine), std::mem::take(&mut self.all)));
        }
    }
}
