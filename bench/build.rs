//! Builds the library that counts what a program asks the C library for. Programs that are measured load it; this one doesn't.

use std::path::Path;

fn main() {
    let source = "src/counted/counting.c";
    println!("cargo:rerun-if-changed={source}");
    let folder = std::env::var("OUT_DIR").unwrap_or_default();
    let library = Path::new(&folder).join("libweir_counting.so");
    let built = cc::Build::new()
        .flag("-std=gnu11")
        .warnings(true)
        .extra_warnings(true)
        .pic(true)
        .get_compiler()
        .to_command()
        .args(["-shared", source, "-o"])
        .arg(&library)
        .args(["-ldl", "-lpthread"])
        .status();
    if !built.is_ok_and(|status| status.success()) {
        println!("cargo:warning=counting.c can't be built here: allocations and locks are not counted");
    }
    println!("cargo:rustc-env=WEIR_COUNTING={}", library.display());
}
