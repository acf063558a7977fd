//! Which thread this is.

/// A number of this thread that no other living thread has. Not 0.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub fn token() -> usize {
    let token;
    // SAFETY: the ABI of x86-64 (ELF Handling For Thread-Local Storage, 3.4.6) puts the address of the thread's control block into its
    // first word, at `fs:0`. It never changes. In a shared library a thread-local variable is found by a call of a function.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) token, options(pure, nomem, nostack, preserves_flags));
    }
    token
}

/// A number of this thread that no other living thread has. Not 0.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
pub fn token() -> usize {
    thread_local!(static TOKEN: u8 = const { 0 });
    TOKEN.with(|token| std::ptr::from_ref(token) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_live_at_once_have_tokens_of_their_own() {
        let both_live = std::sync::Barrier::new(2);
        let own = || {
            both_live.wait();
            let found = (token(), token());
            both_live.wait();
            found
        };
        let (here, there) = std::thread::scope(|scope| {
            let there = scope.spawn(own);
            (own(), there.join().expect("no panic"))
        });
        assert_eq!((here.0, there.0), (here.1, there.1), "a thread keeps its token");
        assert!(here.0 != 0 && there.0 != 0);
        assert_ne!(here.0, there.0);
    }
}
