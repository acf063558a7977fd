//! PMIx: a protocol that only its own client library speaks. `libpmix.so.2` is loaded when a launcher speaks PMIx; its major version
//! covers PMIx 2 to 6. Slurm's plug-in `pmix` and an Open MPI that was built with the system's PMIx have it beside them; Open MPI 4 built with
//! a PMIx of its own has none.
//!
//! Source: the PMIx standard, version 4.2, and `pmix_common.h` for the shapes in memory. A call into the library may wait for the
//! server. One thread makes these calls and the rank waits for its answers with a time limit; where the server says nothing the
//! thread is left behind.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use libloading::Library;

use super::{Exchange, Kind, SILENT, wrong};
use crate::error::{Error, Result};

/// The library, where the loader finds it.
const LIBRARY: &str = "libpmix.so.2";

// pmix_common.h
const NAMESPACE: usize = 256;
const KEY: usize = 512;
const ALL_RANKS: u32 = u32::MAX - 1;
const SUCCESS: c_int = 0;
const GLOBAL: u8 = 3;
const TYPE_BOOL: u16 = 1;
const TYPE_STRING: u16 = 3;
const TYPE_UINT32: u16 = 14;
const JOB_SIZE: &CStr = c"pmix.job.size";
const COLLECT_DATA: &CStr = c"pmix.collect";

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Proc {
    namespace: [c_char; NAMESPACE],
    rank: u32,
}

/// `pmix_value_t`. The union's largest members have 24 bytes; the first 8 are all that is used here.
#[repr(C)]
#[derive(Clone, Copy)]
struct Value {
    kind: u16,
    data: Data,
}

#[repr(C)]
#[derive(Clone, Copy)]
union Data {
    flag: bool,
    uint32: u32,
    string: *mut c_char,
    whole: [u64; 3],
}

/// `pmix_info_t`.
#[repr(C)]
struct Info {
    key: [c_char; KEY],
    flags: u32,
    value: Value,
}

type Init = unsafe extern "C" fn(*mut Proc, *mut Info, usize) -> c_int;
type Finalize = unsafe extern "C" fn(*const Info, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Proc, usize, *const Info, usize) -> c_int;
type Get = unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// The library's functions. It is never unloaded: it has threads of its own.
#[derive(Clone, Copy)]
struct Api {
    init: Init,
    finalize: Finalize,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    error_string: ErrorString,
}

impl Api {
    fn load(name: &str) -> Result<Api> {
        let failed = |error: libloading::Error| {
            wrong(
                Kind::Pmix,
                format!(
                    "{name} cannot be loaded ({error}); install the package of PMIx that the launcher uses, or add its folder to \
                     LD_LIBRARY_PATH"
                ),
            )
        };
        // SAFETY: the library's initialisers have no conditions, as far as anybody knows.
        let library = unsafe { Library::new(name) }.map_err(failed)?;
        // SAFETY: these are the functions' types in pmix.h, the same since version 2.
        let api = unsafe {
            Api {
                init: *library.get::<Init>(b"PMIx_Init\0").map_err(failed)?,
                finalize: *library.get::<Finalize>(b"PMIx_Finalize\0").map_err(failed)?,
                put: *library.get::<Put>(b"PMIx_Put\0").map_err(failed)?,
                commit: *library.get::<Commit>(b"PMIx_Commit\0").map_err(failed)?,
                fence: *library.get::<Fence>(b"PMIx_Fence\0").map_err(failed)?,
                get: *library.get::<Get>(b"PMIx_Get\0").map_err(failed)?,
                error_string: *library.get::<ErrorString>(b"PMIx_Error_string\0").map_err(failed)?,
            }
        };
        std::mem::forget(library);
        Ok(api)
    }

    fn check(&self, call: &str, status: c_int) -> Result<()> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: takes any number, and returns a text that lasts.
        let text = unsafe { (self.error_string)(status) };
        // SAFETY: as above, ended by a zero.
        let text = if text.is_null() { "".into() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy() };
        Err(wrong(Kind::Pmix, format!("{call} returned {status} {text}")))
    }

    /// Connects to the server, and asks for our place: our rank, and the number of ranks.
    fn begin(&self) -> Result<(Proc, usize)> {
        let mut own = Proc { namespace: [0; NAMESPACE], rank: 0 };
        // SAFETY: room for the answer; null and 0 are no arguments.
        self.check("PMIx_Init", unsafe { (self.init)(&raw mut own, std::ptr::null_mut(), 0) })?;
        // SAFETY: the value is the library's, and its kind says which member it is.
        let size = self.value(&Proc { rank: ALL_RANKS, ..own }, JOB_SIZE, |value| unsafe {
            if (*value).kind == TYPE_UINT32 { Some((*value).data.uint32) } else { None }
        })?;
        if own.rank >= size {
            return Err(wrong(Kind::Pmix, format!("rank {} of {size} is no place in a job", own.rank)));
        }
        Ok((own, size as usize))
    }

    /// The value of `key` at `proc`, as `read` converts it. `read` may get a value shorter than [`Value`], which ends after the member
    /// that its kind names: older versions of the library have a smaller union.
    fn value<T>(&self, proc: &Proc, key: &CStr, read: impl FnOnce(*const Value) -> Option<T>) -> Result<T> {
        let mut found = std::ptr::null_mut::<Value>();
        // SAFETY: all pointers are valid during the call; null and 0 are no arguments.
        let status = unsafe { (self.get)(&raw const *proc, key.as_ptr(), std::ptr::null(), 0, &raw mut found) };
        self.check("PMIx_Get", status)?;
        if found.is_null() {
            return Err(wrong(Kind::Pmix, "PMIx_Get returned no value"));
        }
        // SAFETY: after success it is a value that is ours.
        let kind = unsafe { (*found).kind };
        let result = read(found);
        if kind == TYPE_STRING {
            // SAFETY: the kind says that it is a text. The library made it by malloc, and it is not used any more.
            unsafe { libc::free((*found).data.string.cast()) };
        }
        // SAFETY: the library made the value by malloc, and it is not used any more.
        unsafe { libc::free(found.cast::<c_void>()) };
        result.ok_or_else(|| wrong(Kind::Pmix, format!("{key:?} has a value of the unexpected type {kind}")))
    }

    fn put(&self, key: &CStr, text: &CStr) -> Result<()> {
        let mut value = Value { kind: TYPE_STRING, data: Data { whole: [0; 3] } };
        value.data.string = text.as_ptr().cast_mut();
        // SAFETY: key, value and text are valid during the call, which copies them.
        self.check("PMIx_Put", unsafe { (self.put)(GLOBAL, key.as_ptr(), &raw mut value) })
    }

    /// Sends what was put to the server, waits for all ranks, and gets what they have put.
    fn fence(&self) -> Result<()> {
        // SAFETY: takes nothing.
        self.check("PMIx_Commit", unsafe { (self.commit)() })?;
        let mut collect =
            Info { key: [0; KEY], flags: 0, value: Value { kind: TYPE_BOOL, data: Data { whole: [0; 3] } } };
        collect.value.data.flag = true;
        for (place, byte) in collect.key.iter_mut().zip(COLLECT_DATA.to_bytes()) {
            *place = *byte as c_char;
        }
        // SAFETY: no list of processes means all of the job; one argument, valid during the call.
        self.check("PMIx_Fence", unsafe { (self.fence)(std::ptr::null(), 0, &raw const collect, 1) })
    }

    fn get(&self, proc: &Proc, key: &CStr) -> Result<String> {
        // SAFETY: the value is the library's, and its kind says which member it is: a text that ends with a zero, or null.
        self.value(proc, key, |value| unsafe {
            if (*value).kind != TYPE_STRING || (*value).data.string.is_null() {
                return None;
            }
            Some(CStr::from_ptr((*value).data.string).to_string_lossy().into_owned())
        })
    }

    fn finalize(&self) -> Result<()> {
        // SAFETY: null and 0 are no arguments.
        self.check("PMIx_Finalize", unsafe { (self.finalize)(std::ptr::null(), 0) })
    }
}

type Errand = Box<dyn FnOnce(&Api) + Send>;

/// The thread that calls the library. It ends when this is dropped and its last call has returned.
struct Caller {
    errands: Sender<Errand>,
}

impl Caller {
    fn start(api: Api) -> Result<Caller> {
        let (errands, received) = channel::<Errand>();
        let run = move || received.into_iter().for_each(|errand| errand(&api));
        let started = std::thread::Builder::new().name("bellwether-pmix".into()).spawn(run);
        started.map_err(|source| Error::Os { doing: "joining the launcher's ranks", call: "clone", source })?;
        Ok(Caller { errands })
    }

    /// Has the thread make calls, and returns where their result will come.
    fn send<T: Send + 'static>(&self, errand: impl FnOnce(&Api) -> Result<T> + Send + 'static) -> Receiver<Result<T>> {
        let (tell, told) = channel();
        let errand: Errand = Box::new(move |api| {
            // Nobody listens after the time limit.
            let _ = tell.send(errand(api));
        });
        self.errands.send(errand).expect("the thread ends only when its sender is dropped");
        told
    }

    fn call<T: Send + 'static>(
        &self,
        limit: Duration,
        errand: impl FnOnce(&Api) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match wait(&self.send(errand), limit) {
            Some(result) => result,
            None => Err(Error::TimedOut { doing: SILENT.into(), after: limit }),
        }
    }
}

/// The result, if it comes within the limit.
fn wait<T>(told: &Receiver<Result<T>>, limit: Duration) -> Option<Result<T>> {
    match told.recv_timeout(limit) {
        Ok(result) => Some(result),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => Some(Err(wrong(Kind::Pmix, "the thread that calls the library ended"))),
    }
}

/// A connection to a PMIx server.
pub(super) struct Pmix {
    caller: Caller,
    limit: Duration,
    own: Proc,
    size: usize,
    fence: Option<Receiver<Result<()>>>,
}

impl Pmix {
    /// Loads the library and connects.
    pub(super) fn connect(limit: Duration) -> Result<Pmix> {
        Pmix::by(LIBRARY, limit)
    }

    /// The same, by a library of another name.
    pub(super) fn by(library: &str, limit: Duration) -> Result<Pmix> {
        let caller = Caller::start(Api::load(library)?)?;
        let (own, size) = caller.call(limit, Api::begin)?;
        Ok(Pmix { caller, limit, own, size, fence: None })
    }
}

fn text(text: &str) -> CString {
    CString::new(text).expect("keys and values are letters, digits and dashes")
}

impl Exchange for Pmix {
    fn rank(&self) -> usize {
        self.own.rank as usize
    }

    fn size(&self) -> usize {
        self.size
    }

    fn longest(&self) -> usize {
        // No limit is known; the caller has its own.
        usize::MAX
    }

    fn put(&mut self, key: &str, value: &str) -> Result<()> {
        let (key, value) = (text(key), text(value));
        self.caller.call(self.limit, move |api| api.put(&key, &value))
    }

    fn begin_fence(&mut self) -> Result<()> {
        self.fence = Some(self.caller.send(Api::fence));
        Ok(())
    }

    fn fence_is_done(&mut self, limit: Duration) -> Result<bool> {
        let fence = self.fence.as_ref().expect("a fence was begun");
        match wait(fence, limit) {
            None => Ok(false),
            Some(result) => {
                self.fence = None;
                result.map(|()| true)
            }
        }
    }

    fn get(&mut self, from: usize, key: &str) -> Result<String> {
        let (proc, key) = (Proc { rank: from as u32, ..self.own }, text(key));
        self.caller.call(self.limit, move |api| api.get(&proc, &key))
    }

    fn leave(&mut self, limit: Duration) -> Result<()> {
        self.caller.call(limit, Api::finalize)
    }
}
