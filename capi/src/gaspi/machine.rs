//! Texts of codes, times, facts of the host.

use std::ffi::{CString, c_char, c_int};
use std::fs;
use std::sync::OnceLock;
use std::time::Instant;

use bellwether_runtime::vocabulary::gaspi::{Code, codes};

use super::{TEXT, calls, check, store};

/// The text of a code: a static text, or if this thread's last error has this code and a text of its own, that text, which is valid
/// until the thread's next such error.
fn text_of(code: c_int) -> *const c_char {
    static TEXTS: OnceLock<Vec<(i32, CString)>> = OnceLock::new();
    let own = TEXT.try_with(|kept| match &*kept.borrow() {
        Some((own, text)) if *own == code => Some(text.as_ptr()),
        _ => None,
    });
    if let Some(own) = own.ok().flatten() {
        return own;
    }
    let texts = TEXTS.get_or_init(|| {
        let text = |text: &str| CString::new(text).expect("texts have no zero bytes");
        codes::CODES.iter().map(|(number, _, words)| (*number, text(words))).collect()
    });
    let known = texts.iter().find(|(number, _)| *number == code);
    known.map_or(c"The number is no code of GASPI.".as_ptr(), |(_, text)| text.as_ptr())
}

/// The text of a code. The text of an error of this thread is valid until the thread's next error with a text of its own.
#[unsafe(no_mangle)]
pub extern "C" fn gaspi_error_str(code: c_int) -> *const c_char {
    crate::fault::catch(|| text_of(code)).unwrap_or(c"".as_ptr())
}

/// The profiling name.
#[unsafe(no_mangle)]
pub extern "C" fn pgaspi_error_str(code: c_int) -> *const c_char {
    gaspi_error_str(code)
}

/// The processor's frequency in MHz; 1000 where the system does not tell it.
fn frequency() -> f32 {
    static MHZ: OnceLock<f32> = OnceLock::new();
    *MHZ.get_or_init(|| {
        let told = || {
            let info = fs::read_to_string("/proc/cpuinfo").ok()?;
            let line = info.lines().find(|line| line.starts_with("cpu MHz"))?;
            line.split(':').nth(1)?.trim().parse().ok()
        };
        told().filter(|mhz: &f32| *mhz > 0.0).unwrap_or(1000.0)
    })
}

/// The origin of times: the first of these calls.
fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// The number of kB in a line of a file of `/proc`.
fn kilobytes(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// Memory of the host in kB; 0 if the system does not tell it.
#[unsafe(no_mangle)]
pub extern "C" fn gaspi_get_system_mem() -> u64 {
    crate::fault::catch(|| kilobytes("/proc/meminfo", "MemTotal:")).unwrap_or(0)
}

/// Memory that this process uses, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn gaspi_get_mem_in_use() -> u64 {
    crate::fault::catch(|| kilobytes("/proc/self/status", "VmRSS:") * 1024).unwrap_or(0)
}

/// The most memory that this process has used, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn gaspi_get_mem_peak() -> u64 {
    crate::fault::catch(|| kilobytes("/proc/self/status", "VmHWM:") * 1024).unwrap_or(0)
}

/// The processors of a NUMA node, as the system lists them; all of a system that knows no nodes are of node 0.
fn processors_of(node: u8) -> Option<libc::cpu_set_t> {
    let nodes = "/sys/devices/system/node";
    let list = match fs::read_to_string(format!("{nodes}/node{node}/cpulist")) {
        Ok(list) => list,
        Err(_) if node == 0 && !fs::exists(format!("{nodes}/node0")).unwrap_or(false) => "0-1023".to_owned(),
        Err(_) => return None,
    };
    // SAFETY: a set without processors is all zeros.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for processor in listed(&list)? {
        // SAFETY: the number is inside the set.
        unsafe { libc::CPU_SET(processor, &mut set) };
    }
    Some(set)
}

/// The numbers below 1024 of a list such as `0-3,8`.
fn listed(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last]: [usize; 2] = [first.parse().ok()?, last.parse().ok()?];
        numbers.extend(first..=last.min(libc::CPU_SETSIZE as usize - 1));
    }
    Some(numbers)
}

/// The processors that this thread may use: 16 hexadecimal digits for each 64 processors, the first 64 last.
fn affinity_mask() -> Option<String> {
    // SAFETY: a set without processors is all zeros.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid for a write of its size.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return None;
    }
    // SAFETY: the numbers are inside the set.
    let is_in = |processor| unsafe { libc::CPU_ISSET(processor, &set) };
    let word = |first: usize| (0..64).fold(0u64, |word, bit| word | u64::from(is_in(first + bit)) << bit);
    let words: Vec<u64> = (0..libc::CPU_SETSIZE as usize).step_by(64).map(word).collect();
    let used = words.iter().rposition(|word| *word != 0).unwrap_or(0);
    Some(words[..=used].iter().rev().map(|word| format!("{word:016x}")).collect())
}

/// Prints the processors that this thread may use, in one line.
#[unsafe(no_mangle)]
pub extern "C" fn gaspi_print_affinity_mask() {
    let print = || {
        let line = affinity_mask().and_then(|mask| CString::new(format!("affinity mask {mask}")).ok());
        if let Some(line) = line {
            // SAFETY: a text that ends with a zero byte. C's own `puts`, so that the line stays in order with the program's output.
            unsafe { libc::puts(line.as_ptr()) };
        }
    };
    let _ = crate::fault::catch(print);
}

/// The profiling name.
#[unsafe(no_mangle)]
pub extern "C" fn pgaspi_print_affinity_mask() {
    gaspi_print_affinity_mask();
}

calls! {
    gaspi_print_error, pgaspi_print_error(code: c_int, message: *mut *mut c_char) {
        check([message.cast_const().cast()])?;
        // SAFETY: a text that ends with a zero byte.
        let copy = unsafe { libc::strdup(text_of(code)) };
        if copy.is_null() {
            return Err(Code(codes::MEMALLOC));
        }
        // SAFETY: not null, and valid by the caller.
        unsafe { store(message, copy) }
    }

    gaspi_time_get, pgaspi_time_get(millis: *mut f32) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(millis, (start().elapsed().as_secs_f64() * 1e3) as f32) }
    }

    gaspi_time_ticks, pgaspi_time_ticks(ticks: *mut u64) {
        // In the unit of `gaspi_cpu_frequency`, by which programs divide; the processor's own counter may have another.
        let passed = start().elapsed().as_secs_f64() * 1e6 * f64::from(frequency());
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(ticks, passed as u64) }
    }

    gaspi_cpu_frequency, pgaspi_cpu_frequency(mhz: *mut f32) {
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(mhz, frequency()) }
    }

    gaspi_numa_socket, pgaspi_numa_socket(socket: *mut u8) {
        let (mut cpu, mut node) = (0u32, 0u32);
        // SAFETY: both places are valid; the third argument is not used.
        let told = unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, &raw mut node, std::ptr::null_mut::<u8>()) };
        if told != 0 {
            return Err(Code(codes::ERROR));
        }
        // SAFETY: the caller guarantees that it is null or valid.
        unsafe { store(socket, u8::try_from(node).map_err(|_| Code(codes::ERROR))?) }
    }

    gaspi_set_socket_affinity, pgaspi_set_socket_affinity(socket: u8) {
        let set = processors_of(socket).ok_or(Code(codes::ERROR))?;
        // SAFETY: the set is valid for a read of its size.
        let set = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
        // The system refuses a set of which this process may use no processor.
        if set == 0 { Ok(()) } else { Err(Code(codes::ERROR)) }
    }

    gaspi_machine_type, pgaspi_machine_type(name: *mut c_char) {
        // SAFETY: all zeros are texts without bytes.
        let mut told: libc::utsname = unsafe { std::mem::zeroed() };
        // SAFETY: valid for a write.
        if unsafe { libc::uname(&raw mut told) } != 0 {
            return Err(Code(codes::ERROR));
        }
        let mut machine = [0; 16];
        machine[..15].copy_from_slice(&told.machine[..15]);
        // SAFETY: the caller guarantees that it is null or valid for 16 bytes.
        unsafe { store(name.cast::<[c_char; 16]>(), machine) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(listed("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(listed("5"), Some(vec![5]));
        assert_eq!(listed("1022-2000"), Some(vec![1022, 1023]));
        assert_eq!((listed("\n"), listed("a-b")), (Some(Vec::new()), None));
    }
}
