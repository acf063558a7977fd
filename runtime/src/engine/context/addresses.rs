//! Memory by address through contexts.

use super::super::addresses::not_registered;
use super::super::segments::ADDRESS;
use super::Stream;
use super::segments::Access;
use super::wait::Ends;
use crate::error::{Error, Result};

impl Stream {
    /// How bytes at an address of a rank are reached: a [`Locate`](super::segments::Locate), whose offset is the address and whose number
    /// is [`BY_ADDRESS`](super::super::BY_ADDRESS).
    ///
    /// # Errors
    /// [`Error::RankOutOfRange`]; [`Error::BadAddress`]; [`Error::InvalidArgument`] for memory that the network does not reach;
    /// [`Error::PeerLost`].
    pub(crate) fn locate_address(
        &self,
        doing: &'static str,
        (rank, _): (usize, u32),
        address: usize,
        len: usize,
        by_network: bool,
    ) -> Result<Access<'_>> {
        self.check_own(doing)?;
        self.check_rank(doing, rank)?;
        if len == 0 {
            return Ok(Access::Here(std::ptr::dangling_mut(), self.using.begin()));
        }
        let segments = &*self.mapped_segments;
        let bad = || Error::BadAddress { operation: doing, rank, address, length: len };
        if address == 0 || address.checked_add(len).is_none() || segments.is_closed_to_peers(rank, address, len) {
            return Err(bad());
        }
        if by_network || !self.is_mapped(rank) {
            return match segments.in_heaps(rank, address, len) {
                Some((slot, offset)) if slot == rank => Ok(Access::Network(offset)),
                // Another rank's slot is that rank's network's.
                Some(_) => Err(bad()),
                None if self.is_registered(doing, rank, address, len)? => Ok(Access::Network(ADDRESS + address)),
                None => {
                    let instead = "use the calls of World, which send a message, or make it a segment there";
                    Err(not_registered(doing, rank, address, instead))
                }
            };
        }
        let using = self.using.begin();
        Ok(match segments.at_address(rank, address, len) {
            Some(place) => Access::Here(place, using),
            None => Access::Attached(address, using),
        })
    }

    /// Whether all `len` bytes at `address` of `rank` lie in its segments or static data, as the network knows them. Copies the rank's
    /// table if they are not known.
    fn is_registered(&self, doing: &'static str, rank: usize, address: usize, len: usize) -> Result<bool> {
        let is_known = || self.driven().networks.to(rank).covers(rank, address, len);
        if is_known() {
            return Ok(true);
        }
        self.check_reachable(rank, doing)?;
        self.copy_table(doing, rank, Ends::Of(rank))?;
        Ok(is_known())
    }
}
