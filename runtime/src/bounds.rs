//! Bounds that tell the compiler what to say where a program breaks them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;

/// Data that other ranks read and write as bytes: every type that is [`Pod`], and no other.
///
/// A bound of the calls by which values come in. Generic code may ask for [`Pod`] instead, which is as much.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no plain old data (`Pod`): other ranks get its bytes, and nothing that these point to",
    label = "the values are of type `{Self}` here",
    note = "`bool`, `char` and enums are no plain old data: use `u8`, `u32` or the variant's number",
    note = "a struct of numbers without padding becomes plain old data by `#[derive(Clone, Copy, Pod, Zeroable)] #[repr(C)]`, of bytemuck",
    note = "types that serde knows, such as `String` and `Vec<T>`, travel by `World::call` and `World::invoke`, and live in a \
            `DistHashMap` or a `DistQueue`"
)]
pub trait PlainData: Pod {}

#[diagnostic::do_not_recommend]
impl<T: Pod> PlainData for T {}

/// A value that stays on the thread of its rank, as a field of a `W`.
///
/// The compiler refuses to send it to, or share it with, another thread. The error then names `W` and says what to do instead.
/// A bare `Rc` or `Cell` beside it would make the compiler begin with an error about that: every field that is not `Send` and
/// `Sync` is wrapped.
pub struct OneThread<T, W: ?Sized>(T, PhantomData<W>);

impl<T, W: ?Sized> OneThread<T, W> {
    /// Wraps a value.
    #[inline(always)]
    pub const fn new(value: T) -> OneThread<T, W> {
        OneThread(value, PhantomData)
    }

    /// The value.
    #[inline(always)]
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T, W: ?Sized> Deref for OneThread<T, W> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T, W: ?Sized> DerefMut for OneThread<T, W> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Clone, W: ?Sized> Clone for OneThread<T, W> {
    #[inline]
    fn clone(&self) -> OneThread<T, W> {
        OneThread::new(self.0.clone())
    }
}

impl<T: fmt::Debug, W: ?Sized> fmt::Debug for OneThread<T, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Types that any thread may use. There are none.
#[diagnostic::on_unimplemented(
    message = "`{Self}` and what is made of a world stay on the thread of their rank",
    label = "another thread would use a `{Self}`",
    note = "to compute with several threads in a rank make a `Pool`: its threads take iterators over arrays (`par_iter`), and \
            handles to memory that ranks share (`GlobalArray::pooled`, `Pool::share`)",
    note = "to have ranks that are threads, each with a world of its own: `bellwether::threads(4, |world| ...)`"
)]
pub trait OnAnyThread {}

/// Exists so that the compiler does not advise to implement [`OnAnyThread`].
#[expect(dead_code, reason = "it is there to have no values")]
enum Nothing {}

#[diagnostic::do_not_recommend]
impl OnAnyThread for Nothing {}

// SAFETY:
// - `W: OnAnyThread` holds for `Nothing` only: the trait is out of reach outside this module, so nobody else implements it;
// - only this module can name `Nothing`, and it makes no `OneThread<_, Nothing>`: no value of the type exists.
unsafe impl<T, W: ?Sized + OnAnyThread> Send for OneThread<T, W> {}

// SAFETY: as above.
unsafe impl<T, W: ?Sized + OnAnyThread> Sync for OneThread<T, W> {}

/// A part of a `W` that one thread at a time may use: it may be moved to another thread, and not shared. The compiler's error names
/// `W`.
#[derive(Debug)]
pub(crate) struct OneAtATime<T, W: ?Sized> {
    part: T,
    of: PhantomData<fn(&W)>,
}

impl<T, W: ?Sized> OneAtATime<T, W> {
    pub(crate) const fn new(part: T) -> OneAtATime<T, W> {
        OneAtATime { part, of: PhantomData }
    }
}

impl<T, W: ?Sized> Deref for OneAtATime<T, W> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.part
    }
}

/// Types in [`OneAtATime`] that several threads may use at the same time. There are none.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is for one thread at a time",
    label = "another thread would borrow a `{Self}`",
    note = "move it into the thread that uses it, as `move ||` does, and make one for each thread"
)]
pub trait ForSeveralThreads {}

#[diagnostic::do_not_recommend]
impl ForSeveralThreads for Nothing {}

// SAFETY: `W: ForSeveralThreads` holds for `Nothing` only, as with `OnAnyThread`: no value of the type is shared.
unsafe impl<T, W: ?Sized + ForSeveralThreads> Sync for OneAtATime<T, W> {}
