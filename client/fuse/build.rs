//! Generates the mount protocol's Rust types from its one definition.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = "proto/mount/v1/mount.proto";
    println!("cargo::rerun-if-changed={file}");
    let descriptors = protox::compile([file], ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
