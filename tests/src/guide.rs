//! The guide's programs, so that they are compiled and run.

macro_rules! pages {
    ($($name:ident: $file:literal;)*) => {$(
        #[doc = include_str!(concat!("../../docs/src/", $file, ".md"))]
        mod $name {}
    )*};
}

pages! {
    first_job: "first-job";
    model: "model";
    arrays: "arrays";
    irregular: "irregular";
    teams: "teams";
    failures: "failures";
    testing: "testing";
    waiting: "waiting";
    from_mpi: "from-mpi";
    from_openshmem: "from-openshmem";
    from_lapi: "from-lapi";
    from_gaspi: "from-gaspi";
    from_cheetah: "from-cheetah";
    from_upcxx: "from-upcxx";
    from_lamellar: "from-lamellar";
}
