//! Turns `crates/wire/proto` into `crates/wire/src/generated`, which is committed.
//!
//! A build script would run this for everybody who builds tidegate, and protoc with it. So it runs
//! here, by hand after a change: `cargo run -p tidegate-codegen`. The test fails when what is
//! committed is not what would be generated.

use prost_types::FileDescriptorSet;
use std::error::Error;
use std::path::{Path, PathBuf};

/// Whatever went wrong.
pub type Failure = Box<dyn Error + Send + Sync>;

/// Where the committed files are.
pub fn committed() -> PathBuf {
    wire().join("src/generated")
}

fn wire() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Writes one file for each package into `folder`, which has to be there.
pub fn generate(folder: &Path) -> Result<(), Failure> {
    let only_with_grpc = "#[cfg(feature = \"grpc\")]";
    tonic_prost_build::configure()
        .build_transport(false)
        .btree_map(".")
        // Shared by all that are told, and not copied for each.
        .bytes(".tidegate.quota.v1.ServerMessage.directory")
        .client_mod_attribute(".", only_with_grpc)
        .server_mod_attribute(".", only_with_grpc)
        .emit_rerun_if_changed(false)
        .out_dir(folder)
        .compile_fds(descriptors()?)?;
    Ok(())
}

/// What all `.proto` files say.
pub fn descriptors() -> Result<FileDescriptorSet, Failure> {
    let root = wire().join("proto");
    let mut protos = Vec::new();
    find(&root, "proto", &mut protos)?;
    protos.sort();
    Ok(protox::compile(&protos, [&root])?)
}

fn find(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) -> Result<(), Failure> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, extension, found)?;
        } else if path.extension().is_some_and(|this| this == extension) {
            found.push(path);
        }
    }
    Ok(())
}

/// The Rust files in `folder`, sorted.
pub fn rust_files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    find(folder, "rs", &mut found)?;
    found.sort();
    Ok(found)
}
