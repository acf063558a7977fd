//! Collectives of the world on one value of any serde type for each rank: those of the team of all ranks.

use serde::{Serialize, de::DeserializeOwned};

use super::World;
use crate::error::Result;
use crate::team::Team;

/// Values go by serde, in postcard's format, and may have different sizes on different ranks. The calls are those of
/// [`Team::world`], in one order with the other calls of that team; the first call of that allocates its workspace.
///
/// # Examples
/// ```
/// # use bellwether_runtime as bellwether;
/// # bellwether::threads(3, |world| {
/// // Rank 0 reads the input for all.
/// let input = (world.rank() == 0).then(|| (String::from("house.graph"), vec![1.5, 2.5]));
/// let (name, weights) = world.broadcast_value(0, input)?;
/// assert_eq!((name.as_str(), weights.len()), ("house.graph", 2));
/// // Lists of different lengths.
/// let all = world.allgather_values(&vec!['x'; world.rank()])?;
/// assert_eq!(all[2], ['x', 'x']);
/// # Ok(())
/// # })?.into_iter().collect::<bellwether::Result<()>>()?;
/// # Ok::<(), bellwether::Error>(())
/// ```
impl World {
    /// Copies the value of rank `root` to all ranks. Others give `None`. Collective.
    ///
    /// # Errors
    /// As [`Team::broadcast_value`] and [`Team::world`].
    #[track_caller]
    pub fn broadcast_value<T: Serialize + DeserializeOwned>(&self, root: usize, value: Option<T>) -> Result<T> {
        Team::world(self)?.broadcast_value(root, value)
    }

    /// The values of all ranks, in their order, at rank `root`; `None` elsewhere. Collective.
    ///
    /// # Errors
    /// As [`Team::gather_values`] and [`Team::world`].
    #[track_caller]
    pub fn gather_values<T: Serialize + DeserializeOwned>(&self, root: usize, value: &T) -> Result<Option<Vec<T>>> {
        Team::world(self)?.gather_values(root, value)
    }

    /// The values of all ranks, in their order, at all of them. Collective.
    ///
    /// # Errors
    /// As [`Team::allgather_values`] and [`Team::world`].
    #[track_caller]
    pub fn allgather_values<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>> {
        Team::world(self)?.allgather_values(value)
    }

    /// Gives the i-th of the values of rank `root` to rank i. Others give `None`. Collective.
    ///
    /// # Errors
    /// As [`Team::scatter_values`] and [`Team::world`].
    #[track_caller]
    pub fn scatter_values<T: Serialize + DeserializeOwned>(&self, root: usize, values: Option<&[T]>) -> Result<T> {
        Team::world(self)?.scatter_values(root, values)
    }

    /// Combines the values of all ranks, in their order, at rank `root`, which alone runs `combine`; `None` elsewhere. Collective.
    ///
    /// # Errors
    /// As [`Team::reduce_values`] and [`Team::world`].
    #[track_caller]
    pub fn reduce_values<T: Serialize + DeserializeOwned>(
        &self,
        root: usize,
        value: &T,
        combine: impl FnMut(T, T) -> T,
    ) -> Result<Option<T>> {
        Team::world(self)?.reduce_values(root, value, combine)
    }

    /// Combines the values of all ranks, in their order, at all of them; rank 0 runs `combine`. Collective.
    ///
    /// # Errors
    /// As [`Team::allreduce_values`] and [`Team::world`].
    #[track_caller]
    pub fn allreduce_values<T: Serialize + DeserializeOwned>(
        &self,
        value: &T,
        combine: impl FnMut(T, T) -> T,
    ) -> Result<T> {
        Team::world(self)?.allreduce_values(value, combine)
    }
}
