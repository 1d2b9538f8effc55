//! Whether the committed files are what would be generated.

use std::collections::BTreeMap;
use std::path::Path;
use tidegate_codegen::{Failure, committed, generate, rust_files};

/// The text of each file, by name.
fn texts(folder: &Path) -> Result<BTreeMap<String, String>, Failure> {
    let mut texts = BTreeMap::new();
    for path in rust_files(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        texts.insert(name, std::fs::read_to_string(&path)?);
    }
    Ok(texts)
}

#[test]
fn what_is_committed_is_what_is_generated() -> Result<(), Failure> {
    let fresh = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated");
    _ = std::fs::remove_dir_all(&fresh);
    std::fs::create_dir_all(&fresh)?;
    generate(&fresh)?;
    let (fresh, committed) = (texts(&fresh)?, texts(&committed())?);
    let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&fresh), names(&committed), "cargo run -p tidegate-codegen");
    for (name, text) in fresh {
        assert!(text == committed[&name], "{name} is stale: cargo run -p tidegate-codegen");
    }
    Ok(())
}
