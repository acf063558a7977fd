//! The links of a wire, by number of the peer.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

use super::link::{Link, Numbered};

/// All links, which only come: each stays where it is as long as this does.
#[derive(Debug, Default)]
pub struct Links {
    all: RefCell<Vec<(u32, NonNull<Link>)>>,
    places: RefCell<Numbered<u32>>,
    /// The one that was asked for last.
    recent: Cell<Option<(u32, NonNull<Link>)>>,
}

impl Links {
    /// The link to `peer`, if there is one.
    #[inline(always)]
    pub fn get(&self, peer: u32) -> Option<&Link> {
        match self.recent.get() {
            // SAFETY: a link is freed with the collection only, and there is no mutable reference to it.
            Some((recent, link)) if recent == peer => Some(unsafe { link.as_ref() }),
            _ => self.find(peer),
        }
    }

    #[inline(never)]
    fn find(&self, peer: u32) -> Option<&Link> {
        let place = self.places.borrow().get(&peer).copied()?;
        let (_, link) = *self.all.borrow().get(place as usize)?;
        self.recent.set(Some((peer, link)));
        // SAFETY: as in `get`.
        Some(unsafe { link.as_ref() })
    }

    /// Takes the link to a peer that has none.
    pub fn add(&self, peer: u32, link: Link) -> &Link {
        // Freed in `drop`.
        let link = NonNull::from(Box::leak(Box::new(link)));
        let mut all = self.all.borrow_mut();
        let known = self.places.borrow_mut().insert(peer, all.len() as u32);
        assert!(known.is_none(), "a second link to one peer");
        all.push((peer, link));
        // SAFETY: as in `get`.
        unsafe { link.as_ref() }
    }

    /// All links, with their peers; also those that come meanwhile.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Link)> {
        // SAFETY: as in `get`.
        (0..).map_while(|place| self.all.borrow().get(place).map(|(peer, link)| (*peer, unsafe { link.as_ref() })))
    }

    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.all.borrow().len()
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for (_, link) in self.all.get_mut().drain(..) {
            // SAFETY: made of a box, once; nobody can have it any more.
            drop(unsafe { Box::from_raw(link.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::link::ReadFence;
    use super::super::wire::FLOW;
    use super::*;

    #[test]
    fn links_stay_while_others_come() {
        let links = Links::default();
        assert!(links.get(3).is_none());
        let first: *const Link = links.add(3, Link::new(&FLOW, ReadFence::ByDevice));
        let all: Vec<*const Link> =
            (4..100).map(|peer| std::ptr::from_ref(links.add(peer, Link::new(&FLOW, ReadFence::ByDevice)))).collect();
        let known = |peer| links.get(peer).map(std::ptr::from_ref);
        for _ in 0..2 {
            assert_eq!(known(3), Some(first));
            assert!((4..).zip(&all).all(|(peer, link)| known(peer) == Some(*link)));
        }
        assert!(links.get(100).is_none());
        let them = (3..).zip([first].into_iter().chain(all));
        assert!(links.iter().map(|(peer, link)| (peer, std::ptr::from_ref(link))).eq(them));
    }
}
