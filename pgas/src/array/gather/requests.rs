//! Making a plan: each rank tells the owners which elements it wants.

use bellwether_runtime::{Error, Result, World};

use crate::aggregate::Places;
use crate::array::{Layout, check_alike};

const OPERATION: &str = "making a gather plan";

/// The elements that a rank wants, by owner.
pub(super) struct Wanted {
    /// Remote elements, each once, as rank and place there: in the order of these, and so of the inbox.
    pub(super) remote: Vec<(usize, usize)>,
    /// From places among own elements, and of the inbox, to places of the list.
    pub(super) to_local: Vec<(usize, usize)>,
    pub(super) to_remote: Vec<(usize, usize)>,
}

impl Wanted {
    pub(super) fn new(rank: usize, places: &impl Places, numbers: &[usize]) -> Wanted {
        let found: Vec<(usize, usize)> = numbers.iter().map(|number| places.place(*number)).collect();
        let mut remote: Vec<_> = found.iter().copied().filter(|(owner, _)| *owner != rank).collect();
        remote.sort_unstable();
        remote.dedup();
        let (mut to_local, mut to_remote) = (Vec::new(), Vec::new());
        for (to, place) in found.into_iter().enumerate() {
            match remote.binary_search(&place) {
                Ok(from) => to_remote.push((from, to)),
                Err(_) => to_local.push((place.1, to)),
            }
        }
        Wanted { remote, to_local, to_remote }
    }

    /// Owners, and what is wanted there: the place of its first element in `remote`, and how many there are.
    pub(super) fn owners(&self) -> impl Iterator<Item = (usize, (usize, usize))> {
        let mut first = 0;
        self.remote.chunk_by(|a, b| a.0 == b.0).map(move |chunk| {
            let range = (first, chunk.len());
            first += chunk.len();
            (chunk[0].0, range)
        })
    }
}

/// The elements of this rank that another rank wants.
pub(super) struct Asked {
    pub(super) rank: usize,
    /// Place in the half of the inbox there.
    pub(super) to: usize,
    /// Places among the own elements, rising.
    pub(super) places: Vec<u64>,
}

/// Compares layouts, and looks for numbers outside. Collective.
pub(super) fn check<const D: usize>(world: &World, layout: &Layout<D>, numbers: &[usize]) -> Result<()> {
    if layout.ranks() != world.size() {
        let why = format!("the layout is for {} ranks, and the world has {}: {layout}", layout.ranks(), world.size());
        return Err(Error::InvalidArgument { operation: OPERATION, why });
    }
    check_alike(world, "the layout of a gather plan", layout, &layout.to_string())?;
    let outside = numbers.iter().position(|number| *number >= layout.len());
    // 0 on ranks whose numbers are good. A lower rank has a larger value, so the maximum names the lowest rank with an error.
    let mut worst = [outside.map_or(0, |_| world.size() - world.rank()) as u64];
    world.allreduce(&mut worst, u64::max)?;
    if let Some(at) = outside {
        let why = format!("entry {at} of the list is element {}, but the layout has {}", numbers[at], layout.len());
        return Err(Error::InvalidArgument { operation: OPERATION, why });
    }
    match worst[0] as usize {
        0 => Ok(()),
        distance => {
            let why = format!("{OPERATION}: its list has an element that the layout does not have: {layout}");
            Err(Error::Agreed { rank: world.size() - distance, why })
        }
    }
}

/// Sends each owner the places of its elements that this rank wants; returns what the others want of this rank, in the order of
/// ranks. Collective.
pub(super) fn tell_owners(world: &World, wanted: &Wanted) -> Result<Vec<Asked>> {
    let (rank, ranks) = (world.rank(), world.size());
    // From each rank: how many elements it wants, and their place in its inbox; then where it may put its request.
    let table = world.alloc_withheld::<[u64; 2]>(ranks)?;
    let bases = world.alloc_withheld::<u64>(ranks)?;
    for (owner, (first, count)) in wanted.owners() {
        table.put(owner, rank, [count as u64, first as u64])?;
    }
    world.barrier()?;
    let mut asked = Vec::new();
    let mut total = 0;
    for from in 0..ranks {
        let [count, to] = table.load(from);
        if count > 0 {
            bases.put(from, rank, total)?;
            asked.push(Asked { rank: from, to: to as usize, places: vec![0; count as usize] });
            total += count;
        }
    }
    let mut most = [total];
    world.allreduce(&mut most, u64::max)?;
    // An allreduce says nothing about puts: after the barrier the bases are in effect.
    world.barrier()?;
    let requests = world.alloc_withheld::<u64>(most[0] as usize)?;
    for (owner, (first, count)) in wanted.owners() {
        let places: Vec<u64> = wanted.remote[first..][..count].iter().map(|(_, place)| *place as u64).collect();
        requests.put_slice(owner, bases.load(owner) as usize, &places)?;
    }
    world.barrier()?;
    let mut start = 0;
    for asked in &mut asked {
        requests.read(start, &mut asked.places);
        start += asked.places.len();
    }
    Ok(asked)
}
