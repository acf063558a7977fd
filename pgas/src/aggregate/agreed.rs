//! Checks that ranks agree on types and options when they make an object that exchanges items.

use std::any::{TypeId, type_name};
use std::hash::{DefaultHasher, Hash, Hasher};

use bellwether_runtime::{Error, Pod, Result, World};

use super::options::{Options, Route};
use super::shape;

/// Words that say it: bytes of an item, its type's name, memory, items, route, and the type itself.
const FACTS: usize = 7;
/// Stands for the bytes of items of any length.
const ANY: usize = usize::MAX;
/// Bytes of a type's name that others are shown, from its end.
const NAME: usize = 48;

/// Compares items and options with those of all ranks. Collective; a barrier too.
///
/// # Errors
/// [`Error::RanksDiffer`], on all ranks; as [`World::allgather`].
pub(super) fn check<T: Pod>(world: &World, what: &'static str, options: &Options) -> Result<()> {
    check_sized::<T>(world, what, size_of::<T>(), options)
}

/// As [`check`], for items that travel as records of any length.
pub(crate) fn check_records<T: 'static>(world: &World, what: &'static str, options: &Options) -> Result<()> {
    check_sized::<T>(world, what, ANY, options)
}

fn check_sized<T: 'static>(world: &World, what: &'static str, size: usize, options: &Options) -> Result<()> {
    let name = type_name::<T>().as_bytes();
    let (route, columns) = match options.route {
        Route::Auto => (0, 0),
        Route::OneHop => (1, 0),
        Route::TwoHops { columns: None } => (2, 0),
        Route::TwoHops { columns: Some(columns) } => (3, columns as u64),
    };
    // Two types can have one name: those of two blocks of a function.
    let mut hasher = DefaultHasher::new();
    TypeId::of::<T>().hash(&mut hasher);
    let itself = hasher.finish();
    let facts = [size as u64, shape::hash(name), options.memory as u64, options.items as u64, route, columns, itself];
    let mut mine = [0; 8 * FACTS + NAME];
    let (words, tail) = mine.split_at_mut(8 * FACTS);
    words.copy_from_slice(bytemuck::cast_slice(&facts));
    let shown = &name[name.len().saturating_sub(NAME)..];
    tail[..shown.len()].copy_from_slice(shown);
    // One word, as long as nothing is wrong.
    let print = shape::hash(&mine);
    if world.allgather(&[print])?.iter().all(|theirs| *theirs == print) {
        return Ok(());
    }
    let all = world.allgather(&mine)?;
    match all.chunks_exact(mine.len()).position(|theirs| theirs != mine) {
        None => Ok(()),
        Some(rank) => {
            let (mut theirs, ours) = (show(&all[rank * mine.len()..][..mine.len()]), show(&mine));
            if theirs == ours {
                theirs += ", of another type that has this name";
            }
            let advice = "every rank must make it with the same type of items and the same options";
            Err(Error::RanksDiffer { what, rank, reference: world.rank(), theirs, ours, advice })
        }
    }
}

/// The facts as text, for errors.
#[cold]
fn show(facts: &[u8]) -> String {
    let (words, name) = facts.split_at(8 * FACTS);
    let words: [u64; FACTS] = bytemuck::pod_read_unaligned(words);
    let [size, _, memory, items, route, columns, _] = words;
    let name = String::from_utf8_lossy(name);
    let route = match route {
        0 => Route::Auto,
        1 => Route::OneHop,
        2 => Route::TwoHops { columns: None },
        _ => Route::TwoHops { columns: Some(columns as usize) },
    };
    let most = if items == u64::MAX { String::new() } else { format!(", at most {items} in a message") };
    let size = if size == ANY as u64 { "any length".into() } else { format!("{size} bytes") };
    format!("items of {size} ({}), {memory} bytes of memory{most}, route {route:?}", name.trim_end_matches('\0'))
}

/// There is nothing to exchange.
pub(super) fn no_bytes<T>(operation: &'static str) -> Error {
    Error::InvalidArgument { operation, why: format!("{} has no bytes", type_name::<T>()) }
}
