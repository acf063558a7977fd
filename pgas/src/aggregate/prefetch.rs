//! Software prefetch.

macro_rules! prefetch {
    ($(#[$doc:meta])* $name:ident, $hint:ident) => {
        $(#[$doc])*
        #[inline(always)]
        pub(super) fn $name<T>(address: *const T) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a hint, which never faults.
            unsafe {
                std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::$hint }>(address.cast());
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = address;
        }
    };
}

prefetch!(
    /// Prefetches the line at `address`, which need not be mapped.
    prefetch,
    _MM_HINT_T0
);
prefetch!(
    /// As [`prefetch`], into the second-level cache only: more of these can be under way at a time than of those that wait
    /// for a place in the first.
    prefetch_near,
    _MM_HINT_T1
);
