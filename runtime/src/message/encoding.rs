//! How arguments and results of remote calls become bytes: by serde, or as they lie in memory.

use bytemuck::Pod;
use postcard::ser_flavors::Flavor;
use serde::{Serialize, de::DeserializeOwned};

use super::calls::Bytes;
use crate::error::{Error, Result};

/// How a `T` becomes bytes.
pub(super) trait Encoding<T> {
    /// Appends `value` to `bytes`.
    fn encode(value: &T, bytes: &mut Bytes) -> Result<()>;
    /// The inverse, for any bytes; an error says why there is no `T`.
    fn decode(bytes: &[u8]) -> std::result::Result<T, String>;
}

/// By serde, in postcard's format.
pub(super) struct Postcard;

impl<T: Serialize + DeserializeOwned> Encoding<T> for Postcard {
    fn encode(value: &T, bytes: &mut Bytes) -> Result<()> {
        postcard::serialize_with_flavor(value, Append(bytes)).map_err(|error| Error::InvalidArgument {
            operation: "remote call",
            why: format!("{} cannot be serialised: {error}", std::any::type_name::<T>()),
        })
    }

    fn decode(bytes: &[u8]) -> std::result::Result<T, String> {
        postcard::from_bytes(bytes).map_err(|error| format!("{} expected: {error}", std::any::type_name::<T>()))
    }
}

/// Postcard's output, appended.
struct Append<'a>(&'a mut Bytes);

impl Flavor for Append<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Plain old data.
pub(super) struct Plain;

impl<T: Pod> Encoding<T> for Plain {
    #[inline]
    fn encode(value: &T, bytes: &mut Bytes) -> Result<()> {
        bytes.extend_from_slice(bytemuck::bytes_of(value));
        Ok(())
    }

    #[inline]
    fn decode(bytes: &[u8]) -> std::result::Result<T, String> {
        bytemuck::try_pod_read_unaligned(bytes).map_err(|error| {
            format!("{} expected, which has {} bytes: {error}", std::any::type_name::<T>(), size_of::<T>())
        })
    }
}
