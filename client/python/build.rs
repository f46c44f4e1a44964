//! Link settings of `libweir_python.so`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // libfabric is linked in statically, and its objects carry symbol versions that only a libfabric.so defines.
    // Nothing of it, or of any other library inside, is to be seen from outside anyway.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
}
