//! Who still lives, where no supervisor says so (under mpirun).

use super::Engine;
use crate::bootstrap::watch::Watch;

impl Engine {
    /// Marks ranks of this host whose process has ended.
    pub(super) fn look_for_dead(&self) {
        let watch = self.watch.get_or_init(|| {
            let mut watch = Watch::default();
            let here = (0..self.size).filter(|rank| *rank != self.rank && self.job.is_here(*rank));
            here.for_each(|rank| watch.add(&self.job, rank));
            watch.into()
        });
        watch.borrow_mut().look(&self.job);
    }
}
