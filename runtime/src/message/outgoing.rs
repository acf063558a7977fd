//! The messages that a context sends: their ids and headers, without the rank's [`Messages`], which belong to its own thread.

use bytemuck::Pod;
use serde::{Serialize, de::DeserializeOwned};

use super::calls::Bytes;
use super::closure::{place_of_plain, place_of_postcard};
use super::encoding::{Encoding, Postcard};
use super::{Context, HandlerId, Messages, id};
use crate::error::{Error, Result};

/// The id and the header of a message.
pub(crate) type Heading = (u8, u64);

/// The sealed handler table of a rank, as its contexts know it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SealedTable {
    digest: u32,
    is_open: bool,
}

impl Messages {
    /// Closes registration, and tells contexts of the table.
    pub(crate) fn sealed_table(&self) -> SealedTable {
        self.seal();
        SealedTable { digest: self.table.digest.get(), is_open: self.table.open.is_open.get() }
    }
}

impl SealedTable {
    /// The heading of a message for a registered handler. A target on this host, which `is_here` tells, sees the sender's table;
    /// a target on another host compares the digest.
    #[inline]
    pub(crate) fn handler(self, handler: HandlerId, is_here: impl FnOnce() -> bool) -> Heading {
        if self.is_open || is_here() {
            (id::HANDLER, handler.0.into())
        } else {
            (id::HANDLER_AND_DIGEST, u64::from(self.digest) << 32 | u64::from(handler.0))
        }
    }
}

impl SealedTable {
    /// As [`SealedTable::handler`], of a message whose payload begins with the number of a receipt.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the table is open.
    pub(crate) fn handler_with_receipt(self, handler: HandlerId) -> Result<Heading> {
        if self.is_open {
            let why = "functions of an open table send no receipt".into();
            return Err(Error::InvalidArgument { operation: "sending a message", why });
        }
        Ok((id::HANDLER_AND_RECEIPT, u64::from(self.digest) << 32 | u64::from(handler.0)))
    }
}

/// As [`closure`], of a message that asks for the receipt with this number.
///
/// # Errors
/// As [`closure`].
pub(crate) fn closure_with_receipt<A, F>(receipt: u64, arguments: &A, function: F) -> Result<(Heading, Bytes)>
where
    A: Serialize + DeserializeOwned,
    F: Fn(&Context<'_>, A) + Copy + Send + 'static,
{
    let place = place_of_postcard::<A, F>(function)?;
    let mut bytes = Bytes::from_slice(&receipt.to_ne_bytes());
    <Postcard as Encoding<A>>::encode(arguments, &mut bytes)?;
    Ok(((id::CALL, place), bytes))
}

/// The heading of a message that runs `function`, with the bytes of the arguments.
///
/// # Errors
/// [`crate::Error::InvalidArgument`] if the arguments cannot be serialised, or the closure is of a shared library.
pub(crate) fn closure<A, F>(arguments: &A, function: F) -> Result<(Heading, Bytes)>
where
    A: Serialize + DeserializeOwned,
    F: Fn(&Context<'_>, A) + Copy + Send + 'static,
{
    let place = place_of_postcard::<A, F>(function)?;
    let mut bytes = Bytes::new();
    <Postcard as Encoding<A>>::encode(arguments, &mut bytes)?;
    Ok(((id::INVOKE, place), bytes))
}

/// The heading of a message that runs `function` with plain-old-data arguments.
///
/// # Errors
/// [`crate::Error::InvalidArgument`] if the closure is of a shared library.
pub(crate) fn plain_closure<A, F>(function: F) -> Result<Heading>
where
    A: Pod,
    F: Fn(&Context<'_>, A) + Copy + Send + 'static,
{
    Ok((id::INVOKE, place_of_plain::<A, F>(function)?))
}
