//! Ghost layers: elements of the neighbours, kept around what a rank has, and renewed by an exchange.

mod direct;
mod trial;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use bellwether_runtime::{Bell, Error, Pod, Result, Symmetric, World};

use self::direct::Direct;
use self::trial::{Trial, Way};
use super::index::Region;
use super::{GlobalArray, Layout, Local};

const OPERATION: &str = "ghost layers";

/// How many elements of its neighbours a rank keeps on each side of its own.
///
/// # Examples
/// ```
/// use bellwether::array::Ghosts;
/// // One row and one column on each side; columns go on at the other end.
/// let all_eight = Ghosts::new([1, 1]).periodic([false, true]);
/// // A five-point stencil reads no element across a corner.
/// let five_points = all_eight.corners(false);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ghosts<const D: usize> {
    width: [usize; D],
    periodic: [bool; D],
    corners: bool,
}

impl<const D: usize> Ghosts<D> {
    /// Layers of `width` elements on each side in each dimension; not periodic, with corners.
    pub fn new(width: [usize; D]) -> Ghosts<D> {
        Ghosts { width, periodic: [false; D], corners: true }
    }

    /// The dimensions in which the array is periodic. In the others ghost layers beyond the array's ends stay as
    /// the program sets them.
    pub fn periodic(self, periodic: [bool; D]) -> Ghosts<D> {
        Ghosts { periodic, ..self }
    }

    /// Whether elements of ranks that are neighbours in more than one dimension at a time are kept too: a stencil with
    /// diagonals reads them, such as Conway's Life. They are kept unless this says `false`; then an exchange never writes
    /// the corners of the local box, and they hold what the program put there.
    ///
    /// A stencil without diagonals saves messages without corners: where two dimensions have layers an exchange sends to 4
    /// neighbours and not to 8, where three have them to 6 and not to 26. With layers in one dimension there are no corners.
    pub fn corners(self, corners: bool) -> Ghosts<D> {
        Ghosts { corners, ..self }
    }
}

/// The elements that go to one neighbour, and those that come from it.
struct Route<const D: usize> {
    rank: usize,
    /// The elements to send, in the local box, and their place in the inbox there.
    send: Region<D>,
    to: usize,
    /// Where the received elements belong, and their place in the inbox here.
    receive: Region<D>,
    from: usize,
    /// The way without the inbox, if there is one.
    direct: Option<Direct<D>>,
}

/// The state of an array with ghost layers beside its elements.
///
/// Neighbours write into an inbox, never into an array, of which the program may have a slice. There are two halves,
/// used in turn, each with a bell. A rank begins exchange n after it has finished n - 1. It has finished n - 1 only after all its
/// neighbours began n - 1, so they have finished n - 2 and emptied the half that exchange n uses. A rank rings a bell again only
/// when all have rung it: no rank is two exchanges ahead of a neighbour.
///
/// Where a rank starts and finishes an exchange in one call, its neighbours may read its border in place ([`direct`]), if that is the
/// faster way ([`trial`]).
pub(super) struct Halo<T, const D: usize> {
    pub(super) ghosts: Ghosts<D>,
    inbox: Symmetric<T>,
    bells: [Bell; 2],
    /// Elements of half of the inbox.
    half: usize,
    /// In the order of ranks.
    routes: Vec<Route<D>>,
    neighbours: u64,
    started: u64,
    finished: u64,
    trial: Trial,
    /// The words of borders that neighbours copy, which `routes` point to.
    _words: Symmetric<u64>,
    /// Room to pack borders that are not contiguous.
    packed: Vec<T>,
}

impl<T: Pod, const D: usize> GlobalArray<T, D, Local> {
    /// An array of zeros with ghost layers. Collective as [`GlobalArray::new`].
    ///
    /// [`GlobalArray::local`] is then the box with ghost layers, row by row, of [`GlobalArray::local_extents`] elements;
    /// [`GlobalArray::interior`] is the box of this rank's own elements in it, of [`GlobalArray::own_extents`]. In two
    /// dimensions the element at `[i, j]` of the local box is `local()[i * local_extents()[1] + j]`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a dimension with ghost layers is not of blocks, or a part there is smaller than its
    /// ghost layer and not empty; as [`GlobalArray::new`]. Empty parts are passed over: neighbours are those that have
    /// elements.
    ///
    /// # Examples
    /// A smoothed periodic line: the middle while neighbours' elements are on their way, the ends when they are there.
    /// ```
    /// # fn main() -> bellwether::Result<()> {
    /// # bellwether::threads(3, |world| {
    /// use bellwether::array::{Ghosts, GlobalArray, Layout};
    /// let layout = Layout::block([30], world.size())?;
    /// let mut line = GlobalArray::with_ghosts(world, layout, Ghosts::new([1]).periodic([true]))?;
    /// line.iter_mut().for_each(|([i], x)| *x = if i == 0 { 4.0 } else { 0.0 });
    /// let mut smooth = line.map(world, |_| 0.0)?;
    /// let n = smooth.local().len();
    /// let mean = |x: &[f64], i: usize| (x[i] + 2.0 * x[i + 1] + x[i + 2]) / 4.0;
    ///
    /// let pending = line.start_exchange()?;
    /// for i in 1..n - 1 {
    ///     smooth.local_mut()[i] = mean(pending.local(), i);
    /// }
    /// pending.finish()?;
    /// for i in [0, n - 1] {
    ///     smooth.local_mut()[i] = mean(line.local(), i);
    /// }
    /// let smooth = smooth.share(world)?;
    /// assert_eq!([29, 0, 1].map(|i| smooth.get(i).unwrap()), [1.0, 2.0, 1.0]);
    /// # world.barrier()
    /// # })?.into_iter().collect() }
    /// ```
    #[track_caller]
    pub fn with_ghosts(world: &World, layout: Layout<D>, ghosts: Ghosts<D>) -> Result<Self> {
        world.within("with_ghosts", || {
        for (d, &width) in ghosts.width.iter().enumerate().filter(|(_, width)| **width > 0) {
            let axis = layout.axis(d);
            let lengths = (0..axis.parts()).map(|part| axis.len(part)).filter(|length| *length > 0);
            let smallest = lengths.min().unwrap_or(0);
            if !axis.is_contiguous() {
                let why = format!(
                    "dimension {d} has layers of {width} elements and is dealt out in turns, so that a part has no border \
                     that a neighbour could keep. Distribute it in blocks (Layout::block, Layout::rows, \
                     Distribution::Block, Uneven or Sizes), or give it layers of 0: {layout}"
                );
                return Err(Error::InvalidArgument { operation: OPERATION, why });
            }
            if smallest < width {
                let why = format!(
                    "dimension {d} has layers of {width} elements, and its smallest part has {smallest}: a rank sends its \
                     own elements only, so no part may be smaller than a layer. Put fewer ranks along it \
                     (Layout::on_grid), or make it longer or the layers narrower: {layout}"
                );
                return Err(Error::InvalidArgument { operation: OPERATION, why });
            }
        }
        super::check_alike(world, OPERATION, &ghosts, &format!("{ghosts:?}"))?;
        let mut array = Self::with_widths(world, layout, ghosts.width)?;
        array.halo = Some(Box::new(Halo::new(world, &array, ghosts)?));
        Ok(array)
        })
    }

    /// Sends this rank's borders to its neighbours, as they are now: the array may be changed while the exchange is under way.
    /// [`Pending::finish`] brings in what the neighbours sent; theirs are renewed when they finish. Without ghost layers it does nothing.
    ///
    /// Every rank makes the same number of exchanges of an array, in the same order. This call waits for no other rank, unless an earlier
    /// exchange is not finished.
    ///
    /// # Errors
    /// As [`Symmetric::put_slice`] and [`Bell::ring`]; [`Error::InvalidArgument`] if this rank's world was dropped. If an earlier exchange was
    /// not finished that is done first.
    #[track_caller]
    pub fn start_exchange(&mut self) -> Result<Pending<'_, T, D>> {
        self.finish_exchange()?;
        self.within_halo("start_exchange", |halo, array| halo.send(array, false))?;
        Ok(Pending { array: self })
    }

    /// Renews all ghost layers: starts an exchange and finishes it. A neighbour on the same node may copy this rank's border from where it is
    /// while the call waits, if the border has lines of 64 bytes or more; other borders are copied twice, as by
    /// [`GlobalArray::start_exchange`]. Which of the two is faster depends on the processor: both are tried now and then.
    ///
    /// # Errors
    /// As [`GlobalArray::start_exchange`] and [`Pending::finish`].
    #[track_caller]
    pub fn exchange(&mut self) -> Result<()> {
        self.finish_exchange()?;
        self.within_halo("exchange", Halo::exchange)
    }

    #[track_caller]
    fn finish_exchange(&mut self) -> Result<()> {
        match &self.halo {
            Some(halo) if halo.started > halo.finished => self.within_halo("exchange", Halo::receive),
            _ => Ok(()),
        }
    }

    /// Runs a step of an exchange, if there are ghost layers; its waits and errors name `call`.
    #[track_caller]
    fn within_halo(
        &mut self,
        call: &'static str,
        step: impl FnOnce(&mut Halo<T, D>, &mut Self) -> Result<()>,
    ) -> Result<()> {
        let Some(mut halo) = self.halo.take() else { return Ok(()) };
        let progress = self.memory.progress();
        let mut panicked = None;
        let done = progress.within(call, || {
            progress.check_own(call)?;
            if progress.has_left() {
                let why = "this rank has left: its world was dropped".into();
                return Err(Error::InvalidArgument { operation: call, why });
            }
            catch_unwind(AssertUnwindSafe(|| step(&mut halo, self))).unwrap_or_else(|panic| {
                panicked = Some(panic);
                Ok(())
            })
        });
        // After a panic too: if it is of a handler that ran while this rank waited for its neighbours, the next call finishes the exchange.
        self.halo = Some(halo);
        panicked.map_or(done, |panic| resume_unwind(panic))
    }
}

/// An exchange under way.
///
/// It holds the array, whose own elements may be read and changed meanwhile; the ghost layers are renewed when it is
/// finished. One that is dropped is finished by the next exchange.
#[must_use = "ghost layers are renewed when the exchange is finished"]
pub struct Pending<'a, T: Pod, const D: usize> {
    array: &'a mut GlobalArray<T, D, Local>,
}

impl<T: Pod, const D: usize> Pending<'_, T, D> {
    /// The array, to be read.
    pub fn array(&self) -> &GlobalArray<T, D, Local> {
        self.array
    }

    /// As [`GlobalArray::local`].
    #[inline]
    pub fn local(&self) -> &[T] {
        self.array.local()
    }

    /// As [`GlobalArray::local_mut`]. The exchange has sent the elements as they were before.
    #[inline]
    pub fn local_mut(&mut self) -> &mut [T] {
        self.array.local_mut()
    }

    /// Waits until all neighbours have sent their borders, and renews the ghost layers.
    ///
    /// # Errors
    /// As [`Bell::wait`]; then the layers are as before.
    #[track_caller]
    pub fn finish(self) -> Result<()> {
        self.array.finish_exchange()
    }
}

impl<T: Pod, const D: usize> Halo<T, D> {
    fn new(world: &World, array: &GlobalArray<T, D, Local>, ghosts: Ghosts<D>) -> Result<Halo<T, D>> {
        let (layout, width, own) = (&array.layout, ghosts.width, array.own);
        let place = layout.place_of(world.rank());
        let directions = directions(&ghosts);
        // Every rank's inbox has room for the largest border in each direction.
        let mut places = vec![0; directions.len() + 1];
        for (number, direction) in directions.iter().enumerate() {
            let side = |d: usize| if direction[d] == 0 { layout.axis(d).longest() } else { width[d] };
            places[number + 1] = places[number] + (0..D).map(side).product::<usize>();
        }
        let words = world.alloc_withheld(directions.len() * direct::LINE)?;
        let mut routes = Vec::new();
        for (number, direction) in directions.iter().enumerate() {
            let Some(rank) = neighbour(layout, place, *direction, ghosts.periodic) else { continue };
            // Seen from there, this rank lies the other way.
            let back = directions.iter().position(|other| (0..D).all(|d| other[d] == -direction[d]));
            let back = back.expect("with each direction goes its opposite");
            let there = layout.place_of(rank);
            let own_there: [usize; D] = std::array::from_fn(|d| layout.axis(d).len(there[d]));
            let extents = std::array::from_fn(|d| own_there[d] + 2 * width[d]);
            let source = border(own_there, width, directions[back]);
            let direct = Direct::new::<T>(&words, rank, [back, number], source, extents);
            routes.push(Route {
                rank,
                send: border(own, width, *direction),
                to: places[back],
                receive: layer(own, width, *direction),
                from: places[number],
                direct,
            });
        }
        routes.sort_by_key(|route| route.rank);
        let neighbours = routes.chunk_by(|a, b| a.rank == b.rank).count() as u64;
        let half = places[directions.len()];
        let inbox = world.alloc_withheld(2 * half)?;
        let bells = [world.bell()?, world.bell()?];
        Ok(Halo {
            ghosts,
            inbox,
            bells,
            half,
            routes,
            neighbours,
            started: 0,
            finished: 0,
            trial: Trial::new(),
            _words: words,
            packed: Vec::new(),
        })
    }

    /// Sends borders and rings, or lets neighbours copy them where there is a way, which [`Halo::conclude`] ends.
    fn send(&mut self, array: &GlobalArray<T, D, Local>, directly: bool) -> Result<()> {
        let turn = self.turn(self.started);
        // The exchange counts as begun even if it fails below: neighbours may have been told.
        self.started += 1;
        for routes in self.routes.chunk_by(|a, b| a.rank == b.rank) {
            for route in routes {
                match &route.direct {
                    Some(direct) if directly => direct.let_copy(self.started),
                    _ => put(&self.inbox, turn, route, array, &mut self.packed)?,
                }
            }
            self.bells[(self.started - 1) as usize % 2].ring(routes[0].rank)?;
        }
        Ok(())
    }

    fn receive(&mut self, array: &mut GlobalArray<T, D, Local>) -> Result<()> {
        let turn = self.turn(self.finished);
        self.bells[self.finished as usize % 2].wait((self.finished / 2 + 1) * self.neighbours)?;
        for route in &self.routes {
            if let Some(direct) = &route.direct
                && direct.copy(self.finished + 1, array, route.receive)
            {
                continue;
            }
            let (mut from, count) = (turn + route.from, route.receive.extents[D - 1]);
            for here in route.receive.lines() {
                // Line by line: a neighbour may be reading a border of the box.
                array.with_line(here, count, |_, line| self.inbox.read(from, line));
                from += count;
            }
        }
        self.finished += 1;
        Ok(())
    }

    fn exchange(&mut self, array: &mut GlobalArray<T, D, Local>) -> Result<()> {
        match self.trial.choose(self.started + 1, Instant::now) {
            Way::Direct => self.exchange_directly(array),
            Way::Inbox => {
                self.send(array, false)?;
                self.receive(array)
            }
        }
    }

    fn exchange_directly(&mut self, array: &mut GlobalArray<T, D, Local>) -> Result<()> {
        // Neighbours may be reading the border when a handler panics.
        let exchanged = catch_unwind(AssertUnwindSafe(|| {
            self.send(array, true)?;
            self.receive(array)
        }));
        self.conclude(array);
        exchanged.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Waits until no neighbour reads this rank's borders any more, nor will.
    fn conclude(&mut self, array: &GlobalArray<T, D, Local>) {
        let (turn, packed, progress) = (self.turn(self.started - 1), &mut self.packed, array.memory.progress());
        let mut polls = direct::polls(&progress);
        for route in &self.routes {
            let Some(direct) = &route.direct else { continue };
            direct.conclude(self.started, &progress, &mut polls, || {
                put(&self.inbox, turn, route, array, packed).expect("mapped memory, and a range inside it");
            });
        }
    }

    /// The start of the half of the inbox for the exchange that follows `exchanges` exchanges.
    fn turn(&self, exchanges: u64) -> usize {
        exchanges as usize % 2 * self.half
    }
}

/// Puts a border into the neighbour's inbox, whose half begins at `turn`.
fn put<T: Pod, const D: usize>(
    inbox: &Symmetric<T>,
    turn: usize,
    route: &Route<D>,
    array: &GlobalArray<T, D, Local>,
    packed: &mut Vec<T>,
) -> Result<()> {
    let to = turn + route.to;
    let mut lines = array.lines_of(route.send);
    if let (Some((_, line)), true) = (lines.next(), route.send.extents[D - 1] == route.send.len()) {
        return inbox.put_slice(route.rank, to, line);
    }
    packed.clear();
    array.lines_of(route.send).for_each(|(_, line)| packed.extend_from_slice(line));
    inbox.put_slice(route.rank, to, packed)
}

/// The elements that a rank sends in a direction: its outermost elements there, in its local box.
fn border<const D: usize>(own: [usize; D], width: [usize; D], direction: [isize; D]) -> Region<D> {
    region(own, width, direction, |d| [width[d], own[d]])
}

/// The elements that a rank receives from a direction: its ghost layer there, in its local box.
fn layer<const D: usize>(own: [usize; D], width: [usize; D], direction: [isize; D]) -> Region<D> {
    region(own, width, direction, |d| [0, own[d] + width[d]])
}

/// A side of a local box; `starts` gives where it begins along a dimension, at the low end and at the high one.
fn region<const D: usize>(
    own: [usize; D],
    width: [usize; D],
    direction: [isize; D],
    starts: impl Fn(usize) -> [usize; 2],
) -> Region<D> {
    Region {
        start: std::array::from_fn(|d| match direction[d] {
            0 => width[d],
            -1 => starts(d)[0],
            _ => starts(d)[1],
        }),
        extents: std::array::from_fn(|d| if direction[d] == 0 { own[d] } else { width[d] }),
    }
}

/// Where borders go: the sides, or with corners every way.
fn directions<const D: usize>(ghosts: &Ghosts<D>) -> Vec<[isize; D]> {
    let all = (0..3usize.pow(D as u32)).map(|number| {
        let mut rest = number as isize;
        std::array::from_fn(|_| {
            let side = rest % 3 - 1;
            rest /= 3;
            side
        })
    });
    all.filter(|direction: &[isize; D]| {
        let ways = direction.iter().filter(|side| **side != 0).count();
        let wanted = ways == 1 || ways > 1 && ghosts.corners;
        wanted && (0..D).all(|d| direction[d] == 0 || ghosts.width[d] > 0)
    })
    .collect()
}

/// The rank with the elements next to those at a place of the grid, if there is one.
fn neighbour<const D: usize>(
    layout: &Layout<D>,
    place: [usize; D],
    direction: [isize; D],
    periodic: [bool; D],
) -> Option<usize> {
    let mut next = place;
    for d in 0..D {
        let (side, axis) = (direction[d], layout.axis(d));
        // In a part without elements there is nothing to send, and nowhere to send it.
        if axis.len(place[d]) == 0 {
            return None;
        }
        if side == 0 {
            continue;
        }
        loop {
            next[d] = match next[d].checked_add_signed(side).filter(|next| *next < axis.parts()) {
                Some(next) => next,
                None if periodic[d] && side < 0 => axis.parts() - 1,
                None if periodic[d] => 0,
                None => return None,
            };
            if axis.len(next[d]) > 0 {
                break;
            }
        }
    }
    layout.rank_at(next)
}
