//! Listeners for measurements by other providers.

use weir_proto::probe::ProbeListener;

use super::{Config, ConfigError, invalid, is_provider};

/// Reads `provider:port` of each.
pub fn parse(texts: &[String]) -> Result<Vec<ProbeListener>, ConfigError> {
    let parsed = texts.iter().map(|text| {
        let wrong = || invalid("probes", text, "give a provider and a port, e.g. mercury/ofi+tcp:10200");
        let (provider, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        if !is_provider(provider) {
            return Err(invalid("probes", text, "use tcp, shm, verbs, cxi or one of Mercury's"));
        }
        Ok(ProbeListener { provider: provider.to_owned(), port })
    });
    parsed.collect()
}

impl Config {
    /// Each probe has a port of its own, and a provider that the engine isn't measured by anyway.
    pub(super) fn check_probes(&self) -> Result<(), ConfigError> {
        let targets = u32::from(self.fabric_port)..u32::from(self.fabric_port) + self.targets;
        for (at, probe) in self.probes.iter().enumerate() {
            let earlier = &self.probes[..at];
            let wrong =
                |reason: &str| Err(invalid("probes", &format!("{}:{}", probe.provider, probe.port), reason));
            if probe.provider == self.provider {
                return wrong("the targets speak this provider: they are measured by it without a probe");
            }
            if earlier.iter().any(|other| other.provider == probe.provider) {
                return wrong("the provider is listed twice");
            }
            if targets.contains(&u32::from(probe.port))
                || earlier.iter().any(|other| other.port == probe.port)
            {
                return wrong("the port is a target's or another probe's");
            }
        }
        Ok(())
    }
}
