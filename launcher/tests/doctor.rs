//! `bellwether doctor`: each mismatch is brought about, and answered with the command that mends it. Limits are set for the command itself, system
//! calls refused to it by a filter. What needs a network of its own is in `ci/netns`.

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use common::{bellwether, run};
use serde_json::Value;
use tempfile::TempDir;

/// The command's exit code, and what it prints as JSON.
fn examined(mut command: Command) -> (i32, Value) {
    command.arg("--json");
    let done = run(command);
    let all = serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    (done.code(), all)
}

/// A finding of the host with that number: its state, what was found, and the command that mends it.
fn finding(all: &Value, host: usize, what: &str) -> (String, String, String) {
    one(&all["hosts"][host]["findings"], what)
}

/// The worst finding with that name. Each that is not ok has to have a command.
fn one(findings: &Value, what: &str) -> (String, String, String) {
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let list = findings.as_array().expect("a list");
    for finding in list {
        assert_eq!(text(finding, "state") == "ok", text(finding, "mend").is_empty(), "{finding}");
    }
    let rank = |finding: &&Value| ["ok", "warning", "error"].iter().position(|state| finding["state"] == *state);
    let of_name = list.iter().filter(|finding| finding["what"] == what);
    let worst = of_name.max_by_key(rank).unwrap_or_else(|| panic!("no {what} in {list:#?}"));
    (text(worst, "state"), text(worst, "found"), text(worst, "mend"))
}

fn file(folder: &TempDir, name: &str, text: impl AsRef<[u8]>, mode: u32) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("there is room");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
    path.to_str().expect("plain text").to_owned()
}

fn script(folder: &TempDir, name: &str, text: &str) -> String {
    file(folder, name, format!("#!/bin/sh\n{text}\n"), 0o755)
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a place for temporary files")
}

/// With this limit for the command and all that it starts.
fn limited(mut command: Command, resource: u32, soft: u64, hard: u64) -> Command {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: one system call, which takes no lock and no memory.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(resource as _, &raw const limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    command
}

/// The kernel refuses this system call (EPERM) to the command and to all that it starts.
fn refused(mut command: Command, call: i64) -> Command {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let filter = [
        // The number of the call is the first word of `seccomp_data`.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    // SAFETY: two system calls, which take no lock and no memory; the program is four steps long, and lives until they return.
    unsafe {
        command.pre_exec(move || {
            let mut filter = filter;
            let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
            let done = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0;
            if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
    command
}

#[test]
fn a_table_with_a_state_for_each_line_and_an_exit_code() {
    let (code, all) = examined(bellwether(&["doctor", "-n", "2", env!("CARGO_BIN_EXE_bellwether")]));
    for what in ["two ranks", "shared memory", "file size", "open files", "program"] {
        let (state, found, _) = finding(&all, 0, what);
        assert_eq!(state, "ok", "{what}: {found}");
    }
    for what in ["CPUs", "memory", "memlock", "address space", "cross-memory attach"] {
        finding(&all, 0, what);
    }
    assert_eq!(code == 1, all["state"] == "error", "{all}");
    let done = run(bellwether(&["doctor", "-n", "2"]));
    assert!(done.out.starts_with("This host, "), "{}", done.out);
    assert!(done.out.lines().any(|line| line.starts_with("  two ranks ") && line.contains(" ok ")), "{}", done.out);
}

#[test]
fn limits_of_the_system() {
    const UNLIMITED: u64 = libc::RLIM_INFINITY;
    let cases = [
        (libc::RLIMIT_NOFILE, 100, 100, "open files", "error", "nofile 65536"),
        (libc::RLIMIT_FSIZE, 1 << 15, UNLIMITED, "file size", "error", "ulimit -S -f unlimited"),
        (libc::RLIMIT_FSIZE, 1 << 40, UNLIMITED, "file size", "ok", ""),
        (libc::RLIMIT_AS, 2 << 30, UNLIMITED, "address space", "warning", "ulimit -S -v unlimited"),
        (libc::RLIMIT_AS, 2 << 30, 2 << 30, "address space", "warning", "as unlimited"),
    ];
    for (resource, soft, hard, what, expected, mend_has) in cases {
        let (code, all) = examined(limited(bellwether(&["doctor", "-n", "2"]), resource, soft, hard));
        let (state, found, mend) = finding(&all, 0, what);
        assert_eq!(state, expected, "{what}: {found}");
        assert!(mend.contains(mend_has), "{what}: {mend}");
        assert!(expected != "error" || code == 1, "{what}: {all}");
    }
}

#[test]
fn what_is_tried_for_real_and_refused() {
    let (_, all) = examined(refused(bellwether(&["doctor", "-n", "2"]), libc::SYS_process_vm_readv));
    let (state, found, mend) = finding(&all, 0, "cross-memory attach");
    assert_eq!(state, "warning", "{found}");
    assert!(found.contains("not permitted"), "{found}");
    assert!(mend.starts_with("docker run --cap-add=SYS_PTRACE") || mend.contains("ptrace_scope=0"), "{mend}");
    let (code, all) = examined(refused(bellwether(&["doctor", "-n", "2"]), libc::SYS_memfd_create));
    for what in ["shared memory", "two ranks"] {
        let (state, found, _) = finding(&all, 0, what);
        assert_eq!(state, "error", "{what}: {found}");
        assert!(found.contains("memfd_create"), "{what}: {found}");
    }
    assert_eq!(code, 1);
}

#[test]
fn a_start_that_fails_names_what_explains_it() {
    let done = run(refused(bellwether(&["run", "-n", "2", "true"]), libc::SYS_memfd_create));
    assert_ne!(done.code(), 0);
    assert!(
        done.err.contains("shared memory: memfd_create: ") && done.err.contains("mend: docker run"),
        "{}",
        done.err
    );
    let done = run(limited(bellwether(&["run", "-n", "2", "true"]), libc::RLIMIT_NOFILE, 100, 100));
    assert_eq!(done.code(), 125);
    assert!(done.err.contains("open files: 100") && done.err.contains("mend: echo"), "{}", done.err);
    let (error, explained) = (done.err.find("need 134 open files"), done.err.find("mend: echo"));
    assert!(error.is_some() && error < explained, "the error stands first: {}", done.err);
    // A setting that is wrong is what the user wrote.
    let mut command = limited(bellwether(&["run", "-n", "2", "true"]), libc::RLIMIT_FSIZE, 1000, 1000);
    command.env("BELLWETHER_TRANSPORT", "oops");
    let done = run(command);
    assert!(done.err.contains("oops") && !done.err.contains("mend:"), "{}", done.err);
    // A program that is not there has its own error, and a job that starts says nothing.
    let done = run(bellwether(&["run", "-n", "2", "./nothing-is-here"]));
    assert!(done.code() == 127 && !done.err.contains("mend:"), "{}", done.err);
    let done = run(bellwether(&["run", "-n", "2", "true"]));
    assert_eq!((done.code(), &*done.err), (0, ""));
}

/// Compiles a program that uses the library `name`, which is then taken away unless it is to stay.
fn program_with(folder: &TempDir, name: &str, stays: bool) -> String {
    let (source, main) = (
        file(folder, "lib.c", "int one;", 0o644),
        file(folder, "main.c", "int main(void) { extern int one; return one; }", 0o644),
    );
    let path = |name: &str| folder.path().join(name).to_str().expect("plain text").to_owned();
    let cc = |arguments: &[&str]| assert!(Command::new("cc").args(arguments).status().expect("a C compiler").success());
    let (library, program) = (path(name), path("program"));
    cc(&["-shared", "-fPIC", "-o", &library, &source, &format!("-Wl,-soname,{name}")]);
    cc(&["-o", &program, &main, &library, &format!("-Wl,-rpath,{}", folder.path().display())]);
    if !stays {
        std::fs::remove_file(library).expect("it was made");
    }
    program
}

#[test]
fn a_program_that_cannot_run_here() {
    let folder = folder();
    // An ELF file of the number of no machine.
    let mut other = std::fs::read("/bin/true").expect("every Linux has it");
    other[18..20].copy_from_slice(&[0xfe, 0xfe]);
    let cases = [
        (folder.path().join("nothing").display().to_string(), "there is no such file", "ls -l"),
        (file(&folder, "text", "no program", 0o644), "it is not executable", "chmod +x"),
        (folder.path().display().to_string(), "it is a folder", "ls -l"),
        (file(&folder, "nonsense", "nonsense", 0o755), "neither a program nor a script", "file "),
        (
            file(&folder, "script", "#!/nowhere/at-all -x\n", 0o755),
            "a script for \"/nowhere/at-all\"",
            "ls -l /nowhere/at-all",
        ),
        (file(&folder, "other", &other, 0o755), "another processor", "cargo build"),
        (program_with(&folder, "libgone-from-here.so.3", false), "libgone-from-here.so.3", "export LD_LIBRARY_PATH="),
    ];
    for (program, found_has, mend_has) in &cases {
        let (code, all) = examined(bellwether(&["doctor", "-n", "2", program]));
        let (state, found, mend) = finding(&all, 0, "program");
        assert_eq!((&*state, code), ("error", 1), "{found}");
        assert!(found.contains(found_has) && mend.contains(mend_has), "{found}: {mend}");
    }
    // What lies here has a name with a folder.
    let named = std::path::Path::new(&cases[1].0).parent().expect("a folder");
    file(&folder, "here", "#!/bin/sh\n", 0o755);
    let mut command = bellwether(&["doctor", "-n", "2", "here"]);
    command.current_dir(named);
    let (_, all) = examined(command);
    assert_eq!(finding(&all, 0, "program").2, "bellwether doctor ./here  # and start it by this name");
    // A C library that is too old: one machine has not both, so `ldd` is a stand-in.
    script(&folder, "ldd", "echo \"$1: /lib/libc.so.6: version \\`GLIBC_9.99' not found (required by $1)\" >&2");
    let (_, all) = examined(in_path(&folder, bellwether(&["doctor", "-n", "2", "/bin/true"])));
    let (state, found, mend) = finding(&all, 0, "program");
    assert_eq!(state, "error");
    assert!(
        found.contains("needs GLIBC_9.99 of libc.so.6") && mend.contains("cargo build --release"),
        "{found}: {mend}"
    );
}

#[test]
fn launchers_that_do_not_fit_the_build() {
    let (open, mpich) = ("echo 'mpirun (Open MPI) 4.1.4'", "echo 'HYDRA build details:'");
    let list = |plugins: &str| format!("printf 'MPI plugin types are...\\n\\tnone\\n{plugins}'");
    let nothing = list("");
    let cases = [
        // Both commands are stand-ins: one machine has not all of these.
        ("libmpi.so.12", open, &*nothing, "mpirun", "error", "export BELLWETHER_JOIN=pmix"),
        ("libmpi.so.40", mpich, &nothing, "mpirun", "error", "export BELLWETHER_JOIN=pmi1"),
        ("libmpi.so.40", open, &nothing, "mpirun", "ok", ""),
        ("libother.so.1", mpich, &nothing, "mpirun", "ok", ""),
        ("libmpi.so.40", open, &list("\\tpmi2\\n"), "srun", "error", "export BELLWETHER_JOIN=pmi2"),
        ("libmpi.so.40", open, &list("\\tpmix\\n"), "srun", "ok", ""),
        ("libother.so.1", open, &list("\\tpmi2\\n"), "srun", "ok", ""),
        ("libother.so.1", open, &nothing, "srun", "warning", "sudo apt-get install slurm-wlm-basic-plugins"),
        ("libother.so.1", open, "echo no configuration; exit 1", "srun", "warning", "srun --mpi=list"),
    ];
    for (library, mpirun, srun, what, expected, mend) in cases {
        let folder = folder();
        let program = program_with(&folder, library, true);
        script(&folder, "mpirun", mpirun);
        script(&folder, "srun", srun);
        let (_, all) = examined(in_path(&folder, bellwether(&["doctor", "-n", "2", &program])));
        let (state, found, command) = finding(&all, 0, what);
        assert_eq!((&*state, &*command), (expected, mend), "{library}, {mpirun}, {srun}: {found}");
    }
    // The library by which ranks without MPI join is one that the loader refuses.
    let folder = folder();
    script(&folder, "mpirun", open);
    script(&folder, "srun", &list("\\tpmix\\n"));
    file(&folder, "libpmix.so.2", "no library", 0o755);
    let mut command = in_path(&folder, bellwether(&["doctor", "-n", "2"]));
    command.env("LD_LIBRARY_PATH", folder.path());
    let (_, all) = examined(command);
    for what in ["mpirun", "srun"] {
        let (state, found, mend) = finding(&all, 0, what);
        assert_eq!((&*state, &*mend), ("warning", "sudo apt-get install libpmix2"), "{found}");
    }
}

/// Finds programs of that folder first.
fn in_path(folder: &TempDir, mut command: Command) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", folder.path().display())).env_remove("BELLWETHER_JOIN");
    command
}

/// `doctor` over the hosts a and b, whose agent is this script. Both are this host, under two names.
fn two_hosts(folder: &TempDir, agent: &str, arguments: &[&str]) -> (i32, Value) {
    let agent = script(folder, "agent", &format!("host=$1; shift; export BELLWETHER_HOST=$host\n{agent}"));
    let mut command = bellwether(&["doctor", "--hosts", "a:1,b:1", "--agent", &agent]);
    command.args(arguments);
    examined(command)
}

#[test]
fn hosts_are_examined_by_the_agent() {
    let (folder, own) = (folder(), env!("CARGO_BIN_EXE_bellwether"));
    // Before its lines come others, as a login shell may print.
    let (_, all) = two_hosts(&folder, r#"echo Welcome; exec "$@""#, &[own]);
    for host in [0, 1] {
        assert_eq!(all["hosts"][host]["host"], ["a", "b"][host]);
        assert_eq!(finding(&all, host, "two ranks").0, "ok");
    }
    for what in ["this command", "program", "CPU features", "clocks"] {
        let (state, found, _) = one(&all["between"], what);
        assert_eq!(state, "ok", "{what}: {found}");
    }
    // What was not tried is not ok.
    let (state, found, mend) = one(&all["between"], "network");
    assert_eq!((&*state, &*found), ("warning", "not tried: the hosts are one machine"));
    assert!(mend.starts_with("bellwether doctor --hosts a,b "), "{mend}");
    // One kernel under two names that only the settings tell apart: of one name for errors.
    assert_eq!(one(&all["between"], "names of hosts").0, "error");
    let agent = script(&folder, "plain", r#"shift; exec "$@""#);
    let (code, all) = examined(bellwether(&["doctor", "--hosts", "a:1,b:1", "--agent", &agent]));
    let (state, _, mend) = one(&all["between"], "names of hosts");
    assert_eq!((&*state, &*mend), ("warning", "bellwether run --hosts a:N ...  # name it once"));
    assert_eq!(code == 1, all["state"] == "error");
}

#[test]
fn hosts_that_cannot_be_reached() {
    let cases = [
        (r#"echo who are you >&2; exit 255"#, "who are you", "agent b true"),
        ("exit 127", "exit status: 127", "scp "),
        ("echo unrecognized subcommand >&2; exit 2", "unrecognized subcommand", "scp "),
        // An agent of which nothing says that it reaches a host.
        ("exit 1", "exit status: 1", "agent b true"),
        ("exit 126", "exit status: 126", "chmod +x"),
        ("exec sleep 1000", "does not answer in time", "agent b true"),
        // A child that the agent leaves behind keeps its standard error open.
        ("echo gone >&2; sleep 1000 >/dev/null & echo $! > $(dirname $0)/left; exit 3", "gone", "agent b true"),
    ];
    for (agent, found_has, mend_has) in cases {
        let folder = folder();
        let agent = format!("if [ $host = b ]; then {agent}; fi; exec \"$@\"");
        // Long for host a, but it need not answer.
        let (code, all) = two_hosts(&folder, &agent, &["--timeout", "10s"]);
        let (state, found, mend) = finding(&all, 1, "agent");
        assert_eq!((&*state, code), ("error", 1), "{found}");
        assert!(found.contains(found_has) && mend.contains(mend_has), "{found}: {mend}");
        let (state, found, _) = one(&all["between"], "network");
        assert_eq!((&*state, &*found), ("warning", "not tried: fewer than two hosts have answered"));
        if let Ok(left) = std::fs::read_to_string(folder.path().join("left")) {
            // `doctor` has not waited for it.
            assert!(Command::new("kill").arg(left.trim()).status().expect("a shell's tools").success());
        }
    }
}

#[test]
fn one_other_host_is_not_called_this_one() {
    let done = run(bellwether(&["doctor", "--hosts", "b", "--agent", "/bin/false"]));
    assert_eq!(done.code(), 1, "{done:?}");
    assert!(done.out.starts_with("b\n") && !done.out.contains("This host"), "{}", done.out);
    assert!(!done.out.contains("network"), "it has no other to call: {}", done.out);
}

#[test]
fn more_ranks_than_a_host_can_have() {
    let (code, all) = examined(bellwether(&["doctor", "-n", "100000"]));
    let (state, found, mend) = finding(&all, 0, "ranks");
    assert_eq!((&*state, code), ("error", 1));
    assert!(found.contains("a host can have 65536") && mend.contains("--hosts"), "{found}: {mend}");
}

#[test]
fn names_and_variables_that_are_no_utf_8() {
    let odd = OsStr::from_bytes(b"odd\xff");
    let mut command = bellwether(&[]);
    command.arg(odd);
    assert_eq!(run(command).code(), 2);
    let mut command = bellwether(&["doctor", "--help"]);
    command.arg0(odd);
    assert_eq!(run(command).code(), 0);
    let folder = folder();
    let agent = script(&folder, "agent", r#"shift; exec "$@""#);
    let mut command = bellwether(&["doctor", "--hosts", "a:1,b:1", "--agent", &agent]);
    command.env("BELLWETHER_ODD", odd).env(odd, "1");
    assert_eq!(finding(&examined(command).1, 1, "shared memory").0, "ok");
}

#[test]
fn executables_that_differ_and_folders_that_are_missing() {
    let folder = folder();
    let program = script(&folder, "app", "exit 0");
    script(&folder, "of-b", "exit 1");
    // On host b there is another file in its place.
    let agent = r#"if [ $host = b ]; then sed -u "s#/app#/of-b#" | "$@"; else exec "$@"; fi"#;
    let (_, all) = two_hosts(&folder, agent, &[&program]);
    let (state, found, mend) = one(&all["between"], "program");
    // Of scripts, and of stripped copies, ranks start.
    assert_eq!(state, "warning", "{found}");
    assert!(mend.starts_with(&format!("scp a:{program} b:")), "{mend}");
    // A path from this folder: `scp` begins at the home folder.
    let mut command = bellwether(&["doctor", "--hosts", "a:1,b:1", "--agent"]);
    command.arg(folder.path().join("agent")).arg("./app").current_dir(folder.path());
    let mend_of_name = one(&examined(command).1["between"], "program").2;
    assert!(mend_of_name.starts_with("scp a:/"), "{mend_of_name}");
    let work = folder.path().join("work");
    std::fs::create_dir(&work).expect("there is room");
    let agent = script(
        &folder,
        "agent",
        r#"host=$1; shift; if [ $host = b ]; then sed -u "s#/work#/gone#" | "$@"; else exec "$@"; fi"#,
    );
    let mut command = bellwether(&["doctor", "--hosts", "a:1,b:1", "--agent", &agent]);
    command.current_dir(&work);
    let (_, all) = examined(command);
    let (state, found, mend) = finding(&all, 1, "folder");
    assert_eq!(state, "error", "{found}");
    assert!(mend.starts_with("mkdir -p ") && mend.contains("/gone"), "{mend}");
}

#[test]
fn a_clock_that_is_wrong() {
    const CLOCK: &str = r#"
        #define _GNU_SOURCE
        #include <time.h>
        #include <unistd.h>
        #include <sys/syscall.h>
        int clock_gettime(clockid_t id, struct timespec *now) {
            int done = syscall(SYS_clock_gettime, id, now);
            if (id == CLOCK_REALTIME) now->tv_sec -= 100;
            return done;
        }"#;
    let folder = folder();
    let source = file(&folder, "clock.c", CLOCK, 0o644);
    let library = folder.path().join("clock.so");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    assert!(built.expect("a C compiler").success());
    let agent =
        format!("if [ $host = b ]; then exec env LD_PRELOAD={} \"$@\"; fi; exec \"$@\"", Path::new(&library).display());
    let (_, all) = two_hosts(&folder, &agent, &[]);
    let (state, found, mend) = one(&all["between"], "clocks");
    assert_eq!((&*state, &*mend), ("warning", "sudo chronyc makestep  # on b"), "{found}");
    assert!(found.starts_with("b is ") && found.contains(" s behind"), "{found}");
}
