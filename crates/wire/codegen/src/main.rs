//! Writes the generated files anew: see the library.

use tidegate_codegen::{Failure, committed, generate, rust_files};

fn main() -> Result<(), Failure> {
    let folder = committed();
    for old in rust_files(&folder)? {
        std::fs::remove_file(old)?;
    }
    generate(&folder)
}
