//! Bounds that tell the compiler what to say where a program breaks them.

use std::marker::PhantomData;

use bytemuck::Pod;

/// What other ranks read and write as bytes: every type that is [`Pod`], and no other.
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

/// A field without bytes by which the compiler says what to do where a value of type `T` would be sent to, or shared with,
/// another thread.
pub struct OneThread<T: ?Sized>(PhantomData<T>);

impl<T: ?Sized> OneThread<T> {
    /// A field of what stays on the thread of its rank.
    pub const MARK: OneThread<T> = OneThread(PhantomData);
}

/// What any thread may use: nothing.
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
// - `OneThread` holds no value of `T`, and no other;
// - `OnAnyThread` is implemented for `Nothing` only, of which there is no value, and nobody else can name it.
unsafe impl<T: ?Sized + OnAnyThread> Send for OneThread<T> {}

// SAFETY: as above.
unsafe impl<T: ?Sized + OnAnyThread> Sync for OneThread<T> {}
