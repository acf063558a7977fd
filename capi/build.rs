//! Names the shared library inside itself, so that programs look for the name and not for the path they were linked with.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbellwether.so");
}
