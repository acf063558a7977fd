"""The running part of ci/mutants: a scratch copy, builds, tests, and their ends."""

import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import time

# No row may take longer; a broken one that does is killed, and that counts as noticed.
LIMIT = 90


def where(tree, promises, row):
    """Cargo's package, the test targets, and words of test names, that belong to a row."""
    if row in promises:
        return promises[row]["package"], promises[row]["targets"], promises[row]["tests"]
    if row[0] == "u":
        return "bellwether-runtime", ["lib"], [f"{row}_"]
    programs = sorted((tree / "tests" / "tests").glob("cheetah_*.rs"), reverse=True)
    # What needs a feature of the build is left out.
    targets = [path.stem for path in programs if "#![cfg(feature" not in path.read_text()]
    return "bellwether-tests", targets, [f"{row}_"]


def copy_tree(root, tree):
    """Copies what git tracks; files that are equal keep their time, so that builds stay incremental."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True).stdout
    names = {os.fsdecode(name) for name in listed.split(b"\0") if name}
    for name in names:
        source, target = root / name, tree / name
        if not source.is_file():
            continue
        data = source.read_bytes()
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(source.stat().st_mode)
    for target in tree.rglob("*"):
        if target.is_file() and str(target.relative_to(tree)) not in names:
            target.unlink()


def environment(scratch):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BELLWETHER_")}
    return kept | {
        "CARGO_TARGET_DIR": str(scratch / "build"),
        "C_PROGRAMS_BUILD": str(scratch / "build" / "debug"),
        "CARGO_TERM_COLOR": "never",
        "CARGO_PROFILE_DEV_DEBUG": "0",
        # A seed or a size that only `ci/test full` tries may be the one that notices.
        "ROWS_FULL": "1",
        # A broken line may well leave something unused.
        "RUSTFLAGS": "--cap-lints=allow",
        # A panic in a rank that is a process is shown by the test that started it.
        "RUST_BACKTRACE": "0",
    }


def build(tree, env, package, targets):
    """Builds the test programs; gives them by target, or what the compiler said."""
    command = ["cargo", "test", "--quiet", "-p", package, "--no-run", "--message-format=json"]
    if targets == ["models"]:
        # The models of the library, under loom.
        env = env | {"RUSTFLAGS": env["RUSTFLAGS"] + " --cfg loom", "CARGO_TARGET_DIR": env["CARGO_TARGET_DIR"] + "-loom"}
    if package == "bellwether":
        # Its tests take half as long again without, and there is a limit for each row.
        command += ["--config", "profile.dev.package.bellwether.opt-level=1"]
    if "lib" in targets:
        # The suite for every rig is much code: most of the time would go into making it faster.
        command += ["--config", "profile.dev.package.bellwether-runtime.opt-level=0"]
    for target in targets:
        command += ["--lib"] if target in ("lib", "models") else ["--test", target]
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    sources = [tree / "tests" / "tests" / f"{target}.rs" for target in targets] if package == "bellwether-tests" else []
    if done.returncode == 0 and any('with_file_name("bellwether")' in path.read_text() for path in sources):
        launcher = ["cargo", "build", "--quiet", "-p", "bellwether-launcher", "--bin", "bellwether"]
        made = subprocess.run(launcher, cwd=tree, env=env, capture_output=True, text=True)
        if made.returncode:
            return None, made.stderr
    if done.returncode == 0 and package == "bellwether-capi":
        # What the programs link, and what starts them.
        library = ["cargo", "build", "--quiet", "-p", "bellwether-capi", "-p", "bellwether-launcher"]
        made = subprocess.run(library, cwd=tree, env=env, capture_output=True, text=True)
        if made.returncode:
            return None, made.stderr
    programs, said = {}, []
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            of_lib = "models" if targets == ["models"] else "lib"
            name = of_lib if "lib" in message["target"]["kind"] else message["target"]["name"]
            programs[name] = message["executable"]
        elif message["reason"] == "compiler-message" and message["message"]["level"] == "error":
            said.append(message["message"]["rendered"])
    return (programs, None) if done.returncode == 0 else (None, "".join(said) or done.stderr)


def end_session(leader):
    """Kills every process of the session: ranks make groups of their own, but no sessions."""
    for _ in range(20):
        left = []
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            # State, parent, group, session. A zombie is dead, and somebody else's to bury.
            if int(fields[3]) == leader and fields[0] not in "ZX":
                left.append(int(stat.parent.name))
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)


def small_core():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def test(program, directory, env, words, limit, rdma=None):
    """Runs the tests with one of `words` in their names: those that were, those that failed and how, seconds. With `rdma`, the
    tree whose ci/softroce has an RDMA device, only those over that device."""
    listed = subprocess.run([program, *words, "--list"], cwd=directory, env=env, capture_output=True, text=True).stdout
    names = [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]
    command = [program, *words, "--test-threads=6"]
    if rdma:
        names = [name for name in names if "::verbs_device::" in name]
        # The machine boots first.
        limit += 30
        inside = [str(rdma / "ci" / "softroce"), "--timeout", str(int(limit)), "--"]
        command = [*inside, program, *[f"verbs_device::{word}" for word in words], "--ignored", "--test-threads=2"]
    if not names:
        return [], {}, 0.0
    start = time.monotonic()
    child = subprocess.Popen(
        command, cwd=directory, env=env, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=small_core,
    )
    try:
        said, _ = child.communicate(timeout=limit)
        hung = False
    except subprocess.TimeoutExpired:
        end_session(child.pid)
        said, _ = child.communicate()
        hung = True
    end_session(child.pid)
    outcomes = dict(re.findall(r"^test (\S+) \.\.\. (?:.*\s)?(ok|FAILED|ignored)\b", said, re.M))
    failed = {test: "" for test in names if outcomes.get(test) == "FAILED"}
    if hung or child.returncode not in (0, 101):
        how = "watchdog" if "watchdog: " in said and not hung else "hangs" if hung else "crashes"
        failed |= {test: f" ({how})" for test in names if test not in outcomes}
    elif child.returncode == 101 and not failed:
        failed = {test: "" for test in names if test not in outcomes}
    return names, failed, time.monotonic() - start


def short(target, test):
    """A test's surroundings: its rig or its program, and its name where that is another one."""
    return test.split("::")[-2] if "::" in test else target.removeprefix("cheetah_")


def run(root, scratch, promises, entries, remember, minutes=None):
    started = time.monotonic()
    tree, env = scratch / "tree", environment(scratch)
    copy_tree(root, tree)
    usual, good, built = {}, True, {}
    # Either all entries need RDMA or none.
    rdma = root if any(entry.get("rdma") for entry in entries) else None
    for row in sorted({entry["row"] for entry in entries}):
        package, targets, words = where(tree, promises, row)
        place = package, *targets
        if place not in built:
            built[place], said = build(tree, env, package, targets)
            if said:
                print(f"the unbroken tree does not build:\n{said}")
                return False
        for target in targets:
            names, failed, took = test(built[place][target], tree / "tests", env, words, LIMIT, rdma)
            usual[row, target] = took
            if failed:
                print(f"{row}: the unbroken tests fail: {', '.join(f'{t}{how}' for t, how in failed.items())}")
                good = False
        if not any(usual[row, target] for target in targets):
            print(f"{row}: there is no test of that name")
            good = False
    if not good:
        return False
    counts = {"killed": 0, "survived": 0, "does not build": 0}
    for entry in entries:
        if minutes is not None and time.monotonic() - started > 60 * minutes:
            break
        outcome, told = one(tree, env, promises, entry, usual, rdma)
        counts[outcome] += 1
        word = outcome if outcome == "killed" else outcome.upper()
        by = f" by {told}" if outcome == "killed" else ""
        print(f"{entry['row']}  {word}{by}  – {entry['what']}", flush=True)
        if outcome == "does not build":
            print(told, flush=True)
        remember(entry, told if outcome == "killed" else outcome)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    tried = sum(counts.values())
    if tried < len(entries):
        print(f"{len(entries) - tried} of {len(entries)} left out: {minutes:g} minutes are over")
    return counts["killed"] == tried


def one(tree, env, promises, entry, usual, rdma):
    """Breaks the tree, tests it, mends it."""
    row, path = entry["row"], tree / entry["file"]
    package, targets, words = where(tree, promises, row)
    targets = [target for target in targets if usual[row, target]]
    whole = path.read_text()
    if whole.count(entry["old"]) != 1:
        return "does not build", f"`old` occurs {whole.count(entry['old'])} times in {entry['file']}"
    try:
        path.write_text(whole.replace(entry["old"], entry["new"]))
        programs, said = build(tree, env, package, targets)
        if said:
            return "does not build", said
        noticed = {}
        for target in targets:
            # A healthy run on a busy machine fits in this many times the usual one.
            limit = min(LIMIT, 20 + 5 * usual[row, target])
            _, failed, _ = test(programs[target], tree / "tests", env, words, limit, rdma)
            for test_name, how in failed.items():
                noticed.setdefault(short(target, test_name), how)
    finally:
        path.write_text(whole)
    if not noticed:
        return "survived", ""
    return "killed", ", ".join(f"{where}{how}" for where, how in noticed.items())
