//! Generates the management protocol's Rust types from its one definition.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../proto/management/v1";
    let file = format!("{root}/management.proto");
    println!("cargo::rerun-if-changed={file}");
    let descriptors = protox::compile([&file], [root])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
