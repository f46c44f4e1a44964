//! Selects the transport by a provider's name.

use crate::{Addressing, Endpoint, FabricError, Offer, Options, libfabric};
use std::rc::Rc;
use weir_runtime::Handle;

/// Providers of this build that need no special hardware: what tests and benchmarks run on.
#[cfg(not(feature = "mercury"))]
pub const LOOPBACK: &[&str] = &["tcp", "shm"];

/// Providers of this build that need no special hardware: what tests and benchmarks run on.
#[cfg(feature = "mercury")]
pub const LOOPBACK: &[&str] = &["tcp", "shm", crate::mercury::PROTOCOLS[0], crate::mercury::PROTOCOLS[1]];

/// Providers that tests run on: [`LOOPBACK`], or on machines that have others those that the environment variable
/// `WEIR_TEST_PROVIDERS` lists, separated by commas.
#[must_use]
pub fn tested() -> Vec<&'static str> {
    match std::env::var("WEIR_TEST_PROVIDERS") {
        Ok(names) => names.leak().split(',').collect(),
        Err(_) => LOOPBACK.to_vec(),
    }
}

/// Opens an endpoint and has the executor drive it. A provider is libfabric's, or with `mercury/` before it a protocol of
/// Mercury, such as `mercury/ofi+tcp`.
///
/// # Errors
/// When the provider is missing, the address is in use or not local, or the executor is a simulated one.
pub fn open(rt: &Handle, options: &Options) -> Result<Rc<dyn Endpoint>, FabricError> {
    match options.provider.strip_prefix("mercury/") {
        Some(_) if options.addressing == Addressing::Published => Err(FabricError::Provider {
            call: "open",
            code: 0,
            reason: "addresses of Mercury can't be published; leave `fabric_addresses` away".to_owned(),
            provider: options.provider.clone(),
        }),
        Some(protocol) => open_mercury(rt, protocol, options),
        None => libfabric::open(rt, options),
    }
}

#[cfg(feature = "mercury")]
use crate::mercury::open as open_mercury;

#[cfg(not(feature = "mercury"))]
fn open_mercury(_rt: &Handle, _protocol: &str, options: &Options) -> Result<Rc<dyn Endpoint>, FabricError> {
    Err(FabricError::Provider {
        call: "open",
        code: 0,
        reason: "this program was built without Mercury; build it with the cargo feature `mercury`"
            .to_owned(),
        provider: options.provider.clone(),
    })
}

/// Every provider that libfabric offers here, stacked ones too, and Mercury's protocols where they are built in.
///
/// # Errors
/// When the library can't be asked.
pub fn providers() -> Result<Vec<Offer>, FabricError> {
    let offers = libfabric::providers()?;
    #[cfg(feature = "mercury")]
    let offers = offers.into_iter().chain(crate::mercury::offers()).collect();
    Ok(offers)
}

#[cfg(all(test, not(feature = "mercury")))]
mod tests {
    use super::*;
    use weir_runtime::real::Executor;

    #[test]
    fn a_build_without_mercury_says_what_to_build() {
        let executor = Executor::new().expect("an executor");
        let refused = open(&executor.handle(), &Options::near("mercury/na+sm", "127.0.0.1", 1)).err();
        let text = refused.expect("there is none").to_string();
        assert!(text.contains("mercury/na+sm") && text.contains("cargo feature"), "{text}");
        let published =
            Options { addressing: Addressing::Published, ..Options::near("mercury/na+sm", "127.0.0.1", 1) };
        let refused = open(&executor.handle(), &published).err().expect("it publishes none").to_string();
        assert!(refused.contains("fabric_addresses"), "{refused}");
    }
}
