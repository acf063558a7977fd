//! The macros that define what is shared with C, and describe it for the test of the layout.
//!
//! A struct can only be written through [`layouts!`], a constant through [`constants!`]; both leave a table behind.
//! A table that is not in `lib.rs`'s list is dead code, which CI refuses.

/// How a struct may differ in a newer rdma-core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// It may not.
    Fixed,
    /// Fields are added at its end.
    End,
    /// Fields are added at its front; what counts is the distance to its last field.
    Front,
}

/// A struct or union as Rust lays it out.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The type's name in C.
    pub c: &'static str,
    /// How it may differ in a newer rdma-core.
    pub growth: Growth,
    /// Bytes.
    pub size: usize,
    /// Its fields, in order.
    pub fields: &'static [Field],
}

/// A field of a [`Layout`].
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in C.
    pub c: &'static str,
    /// Bytes from the start.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// A group of constants.
#[derive(Clone, Copy, Debug)]
pub struct Constants {
    /// The enum's name in C, empty where it has none.
    pub c: &'static str,
    /// Bytes of a value.
    pub size: usize,
    /// Whether a value may be negative.
    pub signed: bool,
    /// Names and values.
    pub values: &'static [(&'static str, i128)],
}

/// Defines structs and unions with C's layout, and the table `LAYOUTS` of them.
///
/// `object` is a struct that the library makes and that is not copied. `as "..."` is C's name where it is not Rust's;
/// `[End]` and `[Front]` are a [`Growth`].
macro_rules! layouts {
    ($(
        $(#[$meta:meta])*
        $kind:ident $name:ident $([$growth:ident])? $(as $c:literal)? {
            $($field:ident: $type:ty $(as $path:literal)?,)*
        }
    )*) => {
        $($crate::layout::define! { $kind $(#[$meta])* $name { $($field: $type,)* } })*

        pub(crate) const LAYOUTS: &[$crate::layout::Layout] = &[$($crate::layout::Layout {
            c: $crate::layout::either!($($c)?; concat!($crate::layout::keyword!($kind), " ", stringify!($name))),
            growth: $crate::layout::growth!($($growth)?),
            size: size_of::<$name>(),
            fields: &[$($crate::layout::Field {
                c: $crate::layout::either!($($path)?; stringify!($field)),
                offset: core::mem::offset_of!($name, $field),
                size: size_of::<$type>(),
            },)*],
        },)*];
    };
}

macro_rules! define {
    (struct $(#[$meta:meta])* $name:ident $fields:tt) => {
        $crate::layout::define! { @ struct $(#[$meta])* #[derive(Clone, Copy, Debug)] $name $fields }
    };
    (union $(#[$meta:meta])* $name:ident $fields:tt) => {
        $crate::layout::define! { @ union $(#[$meta])* #[derive(Clone, Copy)] $name $fields }

        impl core::fmt::Debug for $name {
            // Which member counts is known to the struct around it at best.
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
    (object $(#[$meta:meta])* $name:ident $fields:tt) => {
        $crate::layout::define! { @ struct $(#[$meta])* $name $fields }
    };
    (@ $kind:ident $(#[$meta:meta])* $name:ident { $($field:ident: $type:ty,)* }) => {
        #[repr(C)]
        $(#[$meta])*
        pub $kind $name {
            $(pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                // SAFETY: fields are integers, raw pointers, `Option`s of functions, C's mutexes and condition
                // variables, and arrays and structs of these: zero bytes are a value of each.
                unsafe { core::mem::zeroed() }
            }
        }
    };
}

macro_rules! keyword {
    (union) => {
        "union"
    };
    ($other:ident) => {
        "struct"
    };
}

macro_rules! growth {
    () => {
        $crate::layout::Growth::Fixed
    };
    ($growth:ident) => {
        $crate::layout::Growth::$growth
    };
}

macro_rules! either {
    (; $default:expr) => {
        $default
    };
    ($given:literal; $default:expr) => {
        $given
    };
}

/// Types that are only pointed to.
macro_rules! opaque {
    ($($name:ident)*) => {$(
        #[repr(C)]
        pub struct $name {
            _bytes: [u8; 0],
            // Neither Send nor Sync nor Unpin may be assumed of it.
            _marker: core::marker::PhantomData<(*mut u8, core::marker::PhantomPinned)>,
        }
    )*};
}

/// Defines constants and the table `CONSTANTS` of them. `enum` is one of C's by that name; `define` are loose values.
macro_rules! constants {
    ($($kind:ident $name:ident: $type:ty { $($constant:ident = $value:expr,)* })*) => {
        $(pub type $name = $type;
        $(pub const $constant: $name = $value;)*)*

        pub(crate) const CONSTANTS: &[$crate::layout::Constants] = &[$($crate::layout::Constants {
            c: $crate::layout::enumeration!($kind $name),
            size: size_of::<$type>(),
            signed: <$type>::MIN != 0,
            values: &[$((stringify!($constant), $constant as i128),)*],
        },)*];
    };
}

macro_rules! enumeration {
    (enum $name:ident) => {
        concat!("enum ", stringify!($name))
    };
    (define $name:ident) => {
        ""
    };
}

/// A function pointer of C, null as `None`.
macro_rules! call {
    (fn($($name:ident: $type:ty),* $(,)?) $(-> $result:ty)?) => {
        Option<unsafe extern "C" fn($($name: $type),*) $(-> $result)?>
    };
}

pub(crate) use {call, constants, define, either, enumeration, growth, keyword, layouts, opaque};
