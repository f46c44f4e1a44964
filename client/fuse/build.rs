//! Generates the mount protocol's Rust types from its one definition, and builds the libraries that mounts show to programs.

use std::path::Path;
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = "proto/mount/v1/mount.proto";
    println!("cargo::rerun-if-changed={file}");
    let descriptors = protox::compile([file], ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    let folder = "../intercept/preload";
    println!("cargo::rerun-if-changed={folder}");
    for library in ["libweir_intercept.so", "libpil4dfs.so"] {
        let file = Path::new(&std::env::var("OUT_DIR")?).join(library);
        let built = Command::new("sh").arg(format!("{folder}/build.sh")).arg(file).status()?;
        if !built.success() {
            return Err(format!("{folder}/build.sh {library}: {built}").into());
        }
    }
    Ok(())
}
