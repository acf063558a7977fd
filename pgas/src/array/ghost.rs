//! Ghost layers: elements of the neighbours, kept around what a rank has, and renewed by an exchange.

use bellwether_runtime::{Bell, Error, Pod, Result, Symmetric, World};

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
    /// So many elements on each side in each dimension; not periodic, with corners.
    pub fn new(width: [usize; D]) -> Ghosts<D> {
        Ghosts { width, periodic: [false; D], corners: true }
    }

    /// In which dimensions the array goes on at its other end. Elsewhere ghost layers beyond the array's ends stay as
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

/// What goes to one neighbour, and what comes from there.
struct Route<const D: usize> {
    rank: usize,
    /// What goes there, in the local box, and its place in the inbox there.
    send: Region<D>,
    to: usize,
    /// Where what comes from there belongs, and its place in the inbox here.
    receive: Region<D>,
    from: usize,
}

/// What an array with ghost layers has beside its elements.
///
/// What neighbours send lands in an inbox, never in an array that somebody may have a slice of. There are two halves,
/// used in turn, each with a bell. A rank begins exchange n when it has finished n - 1, for which it needed all its
/// neighbours to have begun that, and so to have finished n - 2 and emptied its half. And it rings a bell again only
/// when all have rung it: nobody is two exchanges ahead of a neighbour.
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
    /// For what does not lie together.
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

    /// Sends this rank's borders to its neighbours, which renews their ghost layers. They are taken as they are now: the
    /// array may be changed while the exchange is under way. [`Pending::finish`] brings in what the neighbours sent.
    ///
    /// All ranks make as many exchanges of an array, in the same order; they wait for their neighbours only.
    ///
    /// # Errors
    /// As [`Symmetric::put_slice`] and [`Bell::ring`]. If an earlier exchange was not finished that is done first.
    #[track_caller]
    pub fn start_exchange(&mut self) -> Result<Pending<'_, T, D>> {
        self.finish_exchange()?;
        if let Some(mut halo) = self.halo.take() {
            let sent = self.memory.progress().within("start_exchange", || halo.send(self));
            self.halo = Some(halo);
            sent?;
        }
        Ok(Pending { array: self })
    }

    /// Renews all ghost layers: starts an exchange and finishes it.
    ///
    /// # Errors
    /// As [`GlobalArray::start_exchange`] and [`Pending::finish`].
    #[track_caller]
    pub fn exchange(&mut self) -> Result<()> {
        self.memory.progress().within("exchange", || self.start_exchange()?.finish())
    }

    #[track_caller]
    fn finish_exchange(&mut self) -> Result<()> {
        let Some(mut halo) = self.halo.take() else { return Ok(()) };
        let received = match halo.started > halo.finished {
            true => self.memory.progress().within("exchange", || halo.receive(self)),
            false => Ok(()),
        };
        self.halo = Some(halo);
        received
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

    /// As [`GlobalArray::local_mut`]. What was sent is what was there before.
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
        let mut routes = Vec::new();
        for (number, direction) in directions.iter().enumerate() {
            let Some(rank) = neighbour(layout, place, *direction, ghosts.periodic) else { continue };
            // Seen from there, this rank lies the other way.
            let back = directions.iter().position(|other| (0..D).all(|d| other[d] == -direction[d]));
            let back = back.expect("with each direction goes its opposite");
            let extents = std::array::from_fn(|d| if direction[d] == 0 { own[d] } else { width[d] });
            let region = |low: usize, high: fn(usize, usize) -> usize| Region {
                start: std::array::from_fn(|d| match direction[d] {
                    0 => width[d],
                    -1 => low * width[d],
                    _ => high(own[d], width[d]),
                }),
                extents,
            };
            routes.push(Route {
                rank,
                send: region(1, |own, _| own),
                to: places[back],
                receive: region(0, |own, width| own + width),
                from: places[number],
            });
        }
        routes.sort_by_key(|route| route.rank);
        let neighbours = routes.chunk_by(|a, b| a.rank == b.rank).count() as u64;
        let half = places[directions.len()];
        let inbox = world.alloc_withheld(2 * half)?;
        let bells = [world.bell()?, world.bell()?];
        Ok(Halo { ghosts, inbox, bells, half, routes, neighbours, started: 0, finished: 0, packed: Vec::new() })
    }

    fn send(&mut self, array: &GlobalArray<T, D, Local>) -> Result<()> {
        let turn = (self.started % 2) as usize;
        // Begun, whatever becomes of it: neighbours may have heard.
        self.started += 1;
        for routes in self.routes.chunk_by(|a, b| a.rank == b.rank) {
            for route in routes {
                let to = turn * self.half + route.to;
                let mut lines = array.lines_of(route.send);
                if let (Some((_, line)), true) = (lines.next(), route.send.extents[D - 1] == route.send.len()) {
                    self.inbox.put_slice(route.rank, to, line)?;
                } else {
                    self.packed.clear();
                    array.lines_of(route.send).for_each(|(_, line)| self.packed.extend_from_slice(line));
                    self.inbox.put_slice(route.rank, to, &self.packed)?;
                }
            }
            self.bells[turn].ring(routes[0].rank)?;
        }
        Ok(())
    }

    fn receive(&mut self, array: &mut GlobalArray<T, D, Local>) -> Result<()> {
        let turn = (self.finished % 2) as usize;
        self.bells[turn].wait((self.finished / 2 + 1) * self.neighbours)?;
        for route in &self.routes {
            let mut from = turn * self.half + route.from;
            for (_, line) in array.lines_of_mut(route.receive) {
                self.inbox.read(from, line);
                from += line.len();
            }
        }
        self.finished += 1;
        Ok(())
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
