//! Naming code across ranks. Every rank runs the same executable, so a function's distance from an anchor is the
//! same number everywhere, wherever the loader put it.

use std::ops::Range;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::hash;

/// A function's place, the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeOffset(i64);

impl CodeOffset {
    /// The place of the function at `address`; `None` if it is not part of the executable.
    pub fn of(address: usize) -> Option<CodeOffset> {
        image().code.contains(&address).then(|| CodeOffset(address.wrapping_sub(image().anchor) as i64))
    }

    /// The address of that function here; `None` if no code lies there.
    pub fn address(self) -> Option<usize> {
        let address = image().anchor.wrapping_add(self.0 as usize);
        image().code.contains(&address).then_some(address)
    }

    /// As it travels.
    pub fn to_bits(self) -> u64 {
        self.0 as u64
    }

    /// The inverse of [`CodeOffset::to_bits`]; any bits are safe, [`CodeOffset::address`] checks them.
    pub fn from_bits(bits: u64) -> CodeOffset {
        CodeOffset(bits as i64)
    }
}

struct Image {
    anchor: usize,
    /// The executable segment that holds the anchor.
    code: Range<usize>,
    build: u64,
}

#[inline(never)]
fn anchor() {}

/// The executable's image, found out once. Two threads may both find it out; the first to store it wins.
fn image() -> &'static Image {
    static IMAGE: AtomicPtr<Image> = AtomicPtr::new(std::ptr::null_mut());
    // Pairs with the AcqRel below.
    let known = IMAGE.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: only ever set to a leaked box.
        return unsafe { &*known };
    }
    let found = Box::into_raw(Box::new(look_at_image()));
    match IMAGE.compare_exchange(std::ptr::null_mut(), found, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: leaked just now.
        Ok(_) => unsafe { &*found },
        Err(known) => {
            // SAFETY: `found` is ours alone, and was not stored; the other image was leaked by the thread that stored it.
            unsafe {
                drop(Box::from_raw(found));
                &*known
            }
        }
    }
}

#[cold]
fn look_at_image() -> Image {
    let mut image = Image { anchor: anchor as fn() as usize, code: 0..0, build: 0 };
    // SAFETY: the callback only reads what the loader hands it, during the call.
    unsafe { libc::dl_iterate_phdr(Some(look_at_object), (&raw mut image).cast()) };
    if image.build == 0 {
        image.build = digest_of_file();
    }
    image
}

/// Digest of the executable: its build id, or of its bytes if the linker left none.
pub fn build_digest() -> u64 {
    image().build
}

unsafe extern "C" fn look_at_object(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    image: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the loader passes a valid entry, and `image` is what we gave it.
    let (info, image) = unsafe { (&*info, &mut *image.cast::<Image>()) };
    // SAFETY: the loader's table of program headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let range = |header: &libc::Elf64_Phdr| {
        let start = (info.dlpi_addr + header.p_vaddr) as usize;
        start..start + header.p_memsz as usize
    };
    let code = headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0).map(range);
    let Some(code) = code.into_iter().find(|code| code.contains(&image.anchor)) else { return 0 };
    image.code = code;
    for note in headers.iter().filter(|h| h.p_type == libc::PT_NOTE).map(range) {
        // SAFETY: a loaded segment of the object that holds our own code.
        let bytes = unsafe { std::slice::from_raw_parts(note.start as *const u8, note.len()) };
        if let Some(id) = build_id(bytes) {
            image.build = hash::of(id);
        }
    }
    1
}

/// The description of the GNU build-id note among `notes`.
fn build_id(mut notes: &[u8]) -> Option<&[u8]> {
    const NT_GNU_BUILD_ID: u32 = 3;
    while notes.len() >= 12 {
        let word = |i: usize| u32::from_ne_bytes(notes[i..i + 4].try_into().expect("four bytes"));
        let (name_len, len, kind) = (word(0) as usize, word(4) as usize, word(8));
        let name = notes.get(12..12 + name_len)?;
        let start = 12 + name_len.next_multiple_of(4);
        let text = notes.get(start..start + len)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return Some(text);
        }
        notes = notes.get(start + len.next_multiple_of(4)..)?;
    }
    None
}

fn digest_of_file() -> u64 {
    let bytes = std::fs::read("/proc/self/exe").unwrap_or_default();
    hash::of(&bytes) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_found_again_and_other_numbers_are_refused() {
        fn some_function() -> u32 {
            std::hint::black_box(77)
        }
        let address = some_function as fn() -> u32 as usize;
        let offset = CodeOffset::of(address).expect("our own code");
        assert_eq!(CodeOffset::from_bits(offset.to_bits()).address(), Some(address));
        assert_eq!(CodeOffset::from_bits(1 << 60).address(), None);
        assert_eq!(CodeOffset::of(libc::getpid as *const () as usize), None, "another object's code");
        assert_eq!(CodeOffset::of((&raw const address) as usize), None, "not code");
        assert_ne!(build_digest(), 0);
    }

    #[test]
    fn broken_notes_end_the_search() {
        let note = [4u32.to_ne_bytes(), 3u32.to_ne_bytes(), 3u32.to_ne_bytes()].concat();
        let note = [note.as_slice(), b"GNU\0", &[1, 2, 3, 0]].concat();
        assert_eq!(build_id(&note), Some(&[1, 2, 3][..]));
        for cut in 0..19 {
            assert_eq!(build_id(&note[..cut]), None, "{cut}");
        }
    }
}
