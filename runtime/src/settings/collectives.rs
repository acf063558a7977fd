//! Which algorithm each collective of a team uses; and, where one is forced, the world's allreduce, broadcast and allgather.

macro_rules! algorithms {
    ($($(#[$doc:meta])* $name:ident { $($(#[doc = $about:literal])* $variant:ident = $text:literal),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum $name {
            /// By size, ranks and layout.
            #[default]
            Auto,
            $($(#[doc = $about])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &[$name] = &[$name::Auto, $($name::$variant),*];

            /// Each as a user writes it, and what it does.
            pub(super) const WORDS: &[(&str, &str)] =
                &[("auto", "By size, ranks and layout."), $(($text, concat!($($about),*).trim_ascii())),*];

            /// As a user writes it.
            pub fn name(self) -> &'static str {
                match self {
                    $name::Auto => "auto",
                    $($name::$variant => $text,)*
                }
            }

            /// From what a user writes.
            pub(super) fn parse(text: &str) -> Option<$name> {
                Self::ALL.iter().copied().find(|algorithm| algorithm.name() == text)
            }
        }
    )*};
}

algorithms! {
    /// How a team's allreduce is done. All give the same bits: contributions are combined along one binary tree over the
    /// ranks, independent of which rank computes which part.
    Allreduce {
        /// The last rank to arrive combines all contributions and hands out the result. On mapped memory only; elsewhere as `gather`.
        Central = "central",
        /// Every rank gets all contributions and combines them by itself.
        Gather = "gather",
        /// As `gather`, by one message from each rank to each other, its flag beside the data. On mapped memory, of at most 8 ranks and 1 KiB;
        /// elsewhere as `gather`.
        Lines = "lines",
        /// Recursive doubling (Thakur, Rabenseifner and Gropp 2005). If the number of ranks is no power of two, those of the
        /// last block of each round serve all of the block before it, which keeps the tree.
        Doubling = "doubling",
        /// Up a binomial tree to rank 0, and down again.
        Tree = "tree",
        /// Each rank combines one piece and hands it out: a reduce-scatter, then an allgather (Rabenseifner 2004).
        Pieces = "pieces",
        /// On each node, then between one rank of each, then on each node again. Where that would change the tree, every rank
        /// gets all contributions, by nodes. As `auto` if no node has two members, or if all are on one.
        Nodes = "nodes",
    }
    /// How a team's reduce is done.
    Reduce {
        /// Up a binomial tree.
        Tree = "tree",
        /// Everything to the root.
        Flat = "flat",
        /// On each node, then between one rank of each. Where that would change the tree, the root gets all contributions, by
        /// nodes. As `auto` if no node has two members, or if all are on one.
        Nodes = "nodes",
    }
    /// How a team's broadcast is done.
    Broadcast {
        /// Down a binomial tree.
        Tree = "tree",
        /// From the root to every rank.
        Flat = "flat",
        /// To one rank of each node, and on from there. As `auto` if no node has two members, or if all are on one.
        Nodes = "nodes",
    }
    /// How a team's allgather is done.
    Allgather {
        /// From every rank to every rank.
        Direct = "direct",
        /// In log2 n rounds, the k-th to the rank 2^k further (Bruck and others 1997).
        Bruck = "bruck",
        /// Round a ring.
        Ring = "ring",
        /// To one rank of each node, between these, and back. As `auto` if no node has two members, or if all are on one.
        Nodes = "nodes",
    }
    /// How a team's gather is done.
    Gather {
        /// From every rank to the root.
        Direct = "direct",
        /// To one rank of each node, and from these to the root. As `direct` if no node has two members, or if all are on one.
        Nodes = "nodes",
    }
    /// How a team's scatter is done.
    Scatter {
        /// From the root to every rank.
        Direct = "direct",
        /// To one rank of each node, and on from there. As `direct` if no node has two members, or if all are on one.
        Nodes = "nodes",
    }
    /// How a team's all-to-all is done.
    Alltoall {
        /// To as many partners at a time as the workspace holds.
        Direct = "direct",
        /// To one partner at a time.
        Pairwise = "pairwise",
        /// To one rank of each node, between these, and on from there. As `auto` if no node has two members, or if all are
        /// on one.
        Nodes = "nodes",
    }
    /// How a team's scans are done. All combine from rank 0 upwards, one rank after the other, and so give the same bits.
    Scan {
        /// Every rank gets all contributions.
        Gather = "gather",
        /// From rank to rank.
        Chain = "chain",
        /// Every rank gets all contributions, by nodes. As `auto` if no node has two members, or if all are on one.
        Nodes = "nodes",
    }
    /// How a team's barrier is done. `Auto` follows the setting `BELLWETHER_BARRIER`, else ranks, cores and nodes.
    TeamBarrier {
        /// One counter. On mapped memory only; elsewhere as `dissemination`.
        Central = "central",
        /// In log2 n rounds (Hensgen, Finkel and Manber 1988).
        Dissemination = "dissemination",
        /// On each node, between one rank of each, and on each node again. As `dissemination` if no node has two members, or
        /// if all are on one.
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
