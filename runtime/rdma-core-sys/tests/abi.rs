//! Every struct, field, enum and constant of the bindings, compared with what the C compiler says of the header.
//!
//! The lists come from the macros that define the bindings. Without the header there is nothing to compare with: that
//! is a failure in CI (`CI=true`), elsewhere it is only said.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::{env, fs};

use rdma_core_sys::abi::{CONSTANTS, Constants, Growth, LAYOUTS, Layout};

/// What is compared: what it is, as Rust sees it, and C's expression for the same, an `unsigned long long`.
struct Fact {
    name: String,
    rust: u64,
    c: String,
}

fn facts_of_layout(layout: &Layout, facts: &mut Vec<Fact>) {
    let c = layout.c;
    let last = layout.fields.last().expect("a struct has fields");
    // Where the front grows, distances to the last field must hold instead of those from the start.
    let (start, start_c) = match layout.growth {
        Growth::Front => (last.offset, format!("offsetof({c}, {})", last.c)),
        _ => (0, "0".to_owned()),
    };
    let size = (layout.size - start) as u64;
    let size_c = format!("sizeof({c}) - {start_c}");
    facts.push(Fact {
        name: format!("size of {c}"),
        rust: size,
        c: match layout.growth {
            Growth::End => format!("{size_c} < {size} ? {size_c} : {size}"),
            _ => size_c,
        },
    });
    for field in layout.fields {
        facts.push(Fact {
            name: format!("offset of {} in {c}", field.c),
            rust: (field.offset as u64).wrapping_sub(start as u64),
            c: format!("offsetof({c}, {}) - {start_c}", field.c),
        });
        facts.push(Fact {
            name: format!("size of {} in {c}", field.c),
            rust: field.size as u64,
            c: format!("sizeof((({c} *)0)->{})", field.c),
        });
    }
}

fn facts_of_constants(group: &Constants, facts: &mut Vec<Fact>) {
    let c = group.c;
    if !c.is_empty() {
        facts.push(Fact { name: format!("size of {c}"), rust: group.size as u64, c: format!("sizeof({c})") });
        facts.push(Fact {
            name: format!("sign of {c}"),
            rust: u64::from(group.signed),
            c: format!("(({c})-1 < ({c})1)"),
        });
    }
    for (name, value) in group.values {
        // Two's complement, as in C's conversion.
        facts.push(Fact { name: (*name).to_owned(), rust: *value as u64, c: (*name).to_owned() });
    }
}

fn compiler() -> Command {
    Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

/// Why there is nothing to compare with, if so.
fn obstacle(folder: &std::path::Path) -> Option<String> {
    let source = folder.join("header.c");
    fs::write(&source, "#include <infiniband/verbs.h>\n").expect("a file in our own folder");
    let result = compiler().arg("-fsyntax-only").arg(&source).stderr(Stdio::piped()).output();
    match result {
        Err(error) => Some(format!("no C compiler: {error}")),
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn bindings_have_the_layout_of_the_header() {
    let folder = tempfile::tempdir().expect("a folder for the C program");
    if let Some(obstacle) = obstacle(folder.path()) {
        let what =
            format!("infiniband/verbs.h cannot be compiled; install libibverbs-dev and a C compiler\n{obstacle}");
        assert!(env::var_os("CI").is_none_or(|ci| ci != "true"), "{what}");
        eprintln!("left out: {what}");
        return;
    }

    let mut facts = Vec::new();
    LAYOUTS.iter().copied().flatten().for_each(|layout| facts_of_layout(layout, &mut facts));
    CONSTANTS.iter().copied().flatten().for_each(|group| facts_of_constants(group, &mut facts));

    let mut program =
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {\n".to_owned();
    for fact in &facts {
        writeln!(program, "printf(\"%llu\\n\", (unsigned long long)({}));", fact.c).expect("a string takes all");
    }
    program.push_str("return 0;\n}\n");
    let (source, binary) = (folder.path().join("abi.c"), folder.path().join("abi"));
    fs::write(&source, program).expect("a file in our own folder");
    let built = compiler().arg("-w").arg("-o").arg(&binary).arg(&source).output().expect("the compiler ran just now");
    assert!(built.status.success(), "the header lacks something\n{}", String::from_utf8_lossy(&built.stderr));

    let output = Command::new(&binary).output().expect("the program was just built");
    assert!(output.status.success());
    let values: Vec<u64> =
        String::from_utf8_lossy(&output.stdout).lines().map(|line| line.parse().expect("it prints numbers")).collect();
    assert_eq!(values.len(), facts.len());
    let wrong: Vec<String> = facts
        .iter()
        .zip(&values)
        .filter(|(fact, value)| fact.rust != **value)
        .map(|(fact, value)| format!("{}: {} here, {} in the header", fact.name, fact.rust as i64, *value as i64))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // An empty list would agree with everything.
    assert!(facts.len() > 1000, "only {} facts", facts.len());
    println!("{} facts agree", facts.len());
}

/// A struct outside of the macros would not be in the list.
#[test]
fn nothing_is_laid_out_for_c_outside_of_the_macros() {
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for entry in fs::read_dir(sources).expect("the sources of this crate") {
        let path = entry.expect("the sources of this crate").path();
        let text = fs::read_to_string(&path).expect("a source file is text");
        let free = path.file_name().is_some_and(|name| name == "layout.rs");
        assert!(free || !text.contains("repr("), "{}: a struct for C belongs into layouts!", path.display());
    }
}
