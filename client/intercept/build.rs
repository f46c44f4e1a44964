//! Link settings of `libweir_direct.so`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // libfabric is linked in statically, and its objects carry symbol versions that only a libfabric.so defines.
    // A program that the library is loaded into may have a libfabric of its own.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libweir_direct.so");
}
