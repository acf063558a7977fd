//! Which algorithm each collective over a team uses.

macro_rules! algorithms {
    ($($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $variant:ident = $text:literal),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum $name {
            /// By size, ranks and layout.
            #[default]
            Auto,
            $($(#[$about])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &[$name] = &[$name::Auto, $($name::$variant),*];

            /// As one would write it.
            pub fn name(self) -> &'static str {
                match self {
                    $name::Auto => "auto",
                    $($name::$variant => $text,)*
                }
            }

            /// From what one would write.
            pub(super) fn parse(text: &str) -> Option<$name> {
                Self::ALL.iter().copied().find(|algorithm| algorithm.name() == text)
            }
        }
    )*};
}

algorithms! {
    /// How a team's allreduce is done. All give the same bits: contributions are combined along one binary tree over the
    /// ranks, whoever computes which part of it.
    Allreduce {
        /// The last rank to come combines, and hands out the result. Mapped memory only; elsewhere [`Allreduce::Gather`].
        Central = "central",
        /// Everyone gets all contributions and combines them by itself.
        Gather = "gather",
        /// Recursive doubling (Thakur, Rabenseifner, Gropp 2005). Where ranks are no power of two, those of the last block of
        /// each round serve all of the block before it, which keeps the tree.
        Doubling = "doubling",
        /// Up a binomial tree to rank 0, and down again.
        Tree = "tree",
        /// Each rank combines one piece and hands it out: a reduce-scatter, then an allgather (Rabenseifner 2004).
        Pieces = "pieces",
        /// On each node, then between one rank of each, then on each node again; where that would change the tree, everyone
        /// gets all contributions by [`Allgather::Nodes`]. As auto where no node has two members, or all are on one.
        Nodes = "nodes",
    }
    /// How a team's reduce is done.
    Reduce {
        /// Up a binomial tree.
        Tree = "tree",
        /// Everything to the root.
        Flat = "flat",
        /// On each node, then between one rank of each; where that would change the tree, all contributions to the root by
        /// [`Gather::Nodes`]. As auto where no node has two members, or all are on one.
        Nodes = "nodes",
    }
    /// How a team's broadcast is done.
    Broadcast {
        /// Down a binomial tree.
        Tree = "tree",
        /// From the root to everyone.
        Flat = "flat",
        /// To one rank of each node, and on from there. As auto where no node has two members, or all are on one.
        Nodes = "nodes",
    }
    /// How a team's allgather is done.
    Allgather {
        /// From everyone to everyone.
        Direct = "direct",
        /// In log2 n rounds, the k-th to the rank 2^k further (Bruck and others 1997).
        Bruck = "bruck",
        /// Round a ring.
        Ring = "ring",
        /// To one rank of each node, between these, and back. As auto where no node has two members, or all are on one.
        Nodes = "nodes",
    }
    /// How a team's gather is done.
    Gather {
        /// From everyone to the root.
        Direct = "direct",
        /// To one rank of each node, and from these to the root. As direct where no node has two members, or all are on one.
        Nodes = "nodes",
    }
    /// How a team's scatter is done.
    Scatter {
        /// From the root to everyone.
        Direct = "direct",
        /// To one rank of each node, and on from there. As direct where no node has two members, or all are on one.
        Nodes = "nodes",
    }
    /// How a team's all-to-all is done.
    Alltoall {
        /// To as many partners at a time as the workspace holds.
        Direct = "direct",
        /// To one partner at a time.
        Pairwise = "pairwise",
        /// To one rank of each node, between these, and on from there. As auto where no node has two members, or all are on
        /// one.
        Nodes = "nodes",
    }
    /// How a team's scans are done. All combine from rank 0 upwards, one rank after the other, and so give the same bits.
    Scan {
        /// Everyone gets all contributions.
        Gather = "gather",
        /// From rank to rank.
        Chain = "chain",
        /// Everyone gets all contributions by [`Allgather::Nodes`]. As auto where no node has two members, or all are on one.
        Nodes = "nodes",
    }
    /// How a team's barrier is done. Auto: as the setting `BELLWETHER_BARRIER` says, else by ranks, cores and nodes.
    TeamBarrier {
        /// A counter. Mapped memory only; elsewhere [`TeamBarrier::Dissemination`].
        Central = "central",
        /// In log2 n rounds (Hensgen, Finkel and Manber 1988).
        Dissemination = "dissemination",
        /// On each node, between one rank of each, and on each node again. As dissemination where no node has two members, or
        /// all are on one.
        Nodes = "nodes",
    }
}

/// The algorithms of a team's collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Collectives {
    /// Of the allreduce.
    pub allreduce: Allreduce,
    /// Of the reduce.
    pub reduce: Reduce,
    /// Of the broadcast.
    pub broadcast: Broadcast,
    /// Of the allgather.
    pub allgather: Allgather,
    /// Of the gather.
    pub gather: Gather,
    /// Of the scatter.
    pub scatter: Scatter,
    /// Of the all-to-all, also with different lengths.
    pub alltoall: Alltoall,
    /// Of the scans.
    pub scan: Scan,
    /// Of the barrier.
    pub barrier: TeamBarrier,
}
