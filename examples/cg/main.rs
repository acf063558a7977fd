//! placeholder
fn main() {
    println!("heat2d");
}
