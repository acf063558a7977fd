//! Memory outside segments, served by its owner: where the kernel allows no cross-memory attach, and for counters,
//! which need an atomic add.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::atomic::{AtomicI32, Ordering};

use super::{Messages, id, words};
use crate::memory::outside::{self, Direction, Refused};

/// Writing at the peer: header is the address; the payload is the bell's address, then the bytes.
/// Reading at the peer: header is the address; the payload is length, where to, local bell, remote bell.
pub(super) fn install(messages: &Rc<Messages>) {
    let interface = &messages.engine.interface;
    let weak = Rc::downgrade(messages);
    interface.set_handler(
        id::WRITE,
        Box::new(move |message| {
            let Some(messages) = weak.upgrade() else { return };
            let Some(([to, bell], bytes)) = words::<2>(message.data()) else {
                return messages.fault(message.from, "a write without an address");
            };
            if let Err(why) = write_here(to as usize, bytes) {
                return messages.fault(message.from, why);
            }
            ring_or_tell(&messages, message.from, bell);
        }),
    );
    let weak = Rc::downgrade(messages);
    interface.set_handler(
        id::READ,
        Box::new(move |message| {
            let Some(messages) = weak.upgrade() else { return };
            let Some(([from, len, to, local_bell, remote_bell], _)) = words::<5>(message.data()) else {
                return messages.fault(message.from, "a read without an address");
            };
            match read_here(from as usize, len as usize) {
                Ok(bytes) => {
                    ring_or_tell(&messages, message.from, remote_bell);
                    let reply = [&local_bell.to_ne_bytes(), bytes.as_slice()].concat();
                    if let Err(error) = messages.engine.send_or_keep(message.from, id::READ_DONE, to, &reply) {
                        messages.engine.set_fault(error);
                    }
                }
                Err(why) => messages.fault(message.from, why),
            }
        }),
    );
    let weak = Rc::downgrade(messages);
    interface.set_handler(
        id::READ_DONE,
        Box::new(move |message| {
            let Some(messages) = weak.upgrade() else { return };
            let Some(([to, bell], bytes)) = words::<2>(message.data()) else {
                return messages.fault(message.from, "an answer to a read without an address");
            };
            if let Err(why) = write_here(to as usize, bytes) {
                return messages.fault(message.from, why);
            }
            ring_or_tell(&messages, message.from, bell);
        }),
    );
    let weak = Rc::downgrade(messages);
    interface.set_handler(
        id::RING,
        Box::new(move |message| {
            let Some(messages) = weak.upgrade() else { return };
            match words::<1>(message.data()) {
                Some(([bell], _)) => ring_or_tell(&messages, message.from, bell),
                None => messages.fault(message.from, "a ring without an address"),
            }
        }),
    );
}

fn ring_or_tell(messages: &Messages, from: usize, bell: u64) {
    if let Err(why) = ring_here(bell as usize) {
        messages.fault(from, why);
    }
}

/// Adds one to the counter at `address` of this process; 0 means none.
fn ring_here(address: usize) -> Result<(), String> {
    if address == 0 {
        return Ok(());
    }
    if !address.is_multiple_of(align_of::<AtomicI32>()) {
        return Err(format!("a bell at {address:#x}, which is no multiple of 4"));
    }
    // A look through the kernel first: a bad address is an error, not a crash.
    let mut look = [0u8; 4];
    move_here(Direction::Get, &mut look, address)?;
    // SAFETY: mapped, as just seen, and aligned; that a counter lies there is the word of the sender, who had to
    // use `unsafe` to give this address.
    unsafe { AtomicI32::from_ptr(address as *mut i32) }.fetch_add(1, Ordering::Release);
    Ok(())
}

fn write_here(address: usize, bytes: &[u8]) -> Result<(), String> {
    // The kernel only reads what it writes elsewhere, so the copy is for the signature alone.
    let mut bytes = bytes.to_vec();
    move_here(Direction::Put, &mut bytes, address)
}

fn read_here(address: usize, len: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| format!("a read of {len} bytes, for which there is no memory"))?;
    bytes.resize(len, 0);
    move_here(Direction::Get, &mut bytes, address)?;
    Ok(bytes)
}

/// Moves bytes between a buffer and an address of this process that may not be mapped.
fn move_here(direction: Direction, bytes: &mut [u8], address: usize) -> Result<(), String> {
    // SAFETY: `bytes` is ours; the kernel checks the address.
    let moved = unsafe { outside::transfer(direction, std::process::id(), bytes.as_mut_ptr(), address, bytes.len()) };
    let len = bytes.len();
    let bad = || format!("{len} bytes at {address:#x}, which are not all memory of this rank");
    match moved {
        Ok(()) => Ok(()),
        Err(Refused::BadAddress | Refused::Gone) => Err(bad()),
        Err(Refused::NotPermitted) => {
            // Where the kernel allows no cross-memory attach, not even to oneself, there is this file.
            let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem").map_err(|e| e.to_string())?;
            match direction {
                Direction::Put => memory.write_all_at(bytes, address as u64),
                Direction::Get => memory.read_exact_at(bytes, address as u64),
            }
            .map_err(|_| bad())
        }
    }
}

impl Messages {
    /// Asks `to` to write `bytes` at `address` and then ring `bell` (0: none).
    pub fn write_outside(&self, to: usize, address: usize, bytes: &[u8], bell: usize) -> crate::error::Result<()> {
        let payload = [&(bell as u64).to_ne_bytes(), bytes].concat();
        self.engine.send_or_keep(to, id::WRITE, address as u64, &payload)
    }

    /// Asks `to` for `len` bytes at `address`, to be written at `here`; then the bells ring, the remote one first.
    ///
    /// # Safety
    /// `here` is valid for writing until the local bell has rung.
    pub unsafe fn read_outside(
        &self,
        to: usize,
        address: usize,
        len: usize,
        here: usize,
        local_bell: usize,
        remote_bell: usize,
    ) -> crate::error::Result<()> {
        let payload: Vec<u8> =
            [len, here, local_bell, remote_bell].iter().flat_map(|word| (*word as u64).to_ne_bytes()).collect();
        self.engine.send_or_keep(to, id::READ, address as u64, &payload)
    }

    /// Asks `to` to add one to the counter at `address`.
    pub fn ring_outside(&self, to: usize, address: usize) -> crate::error::Result<()> {
        self.engine.send_or_keep(to, id::RING, address as u64, &[])
    }
}
