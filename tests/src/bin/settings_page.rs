//! Prints the guide's page of settings.

use std::io::Write;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(bellwether_tests::settings_page::page().as_bytes())
}
