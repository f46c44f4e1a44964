//! `fabric` commands: what the data path offers, keys of tenants, and its measurement. The room calls connections, and the local
//! system's address and secrets for a peer of its own. The arguments name its commands; the crate's root performs them.

mod probe;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Subcommand;
use serde_json::{Value, json};
use weir_client::{Attach, Context};
use weir_fabric::{Capabilities, Offer};
use weir_proto::TenantId;
use weir_proto::capability::SystemKey;

use crate::attach::AttachFile;
use crate::connection;
use crate::error::CliError;
use crate::output::{Answer, Output, fields, table};
use crate::secret::write_private;
use crate::values::base64;
pub use probe::BenchArguments;

/// File name of a tenant's key beside its attach file.
const TENANT_KEY: &str = "tenant.key";

/// The data path.
#[derive(Subcommand, Debug, Clone)]
pub enum FabricCommand {
    /// Say what the fabric providers of this machine can do, and open a client's endpoint.
    Info,
    /// Measure round trips, rate and transfers to each engine, as a client has them.
    Bench(BenchArguments),
    /// Be the other side of `bench --local`.
    #[command(hide = true)]
    Answer {
        /// Fabric provider.
        provider: String,
        /// Port to listen at.
        port: u16,
    },
    /// Write the attach file and key of a tenant's clients to a folder; it takes the system's own attach file.
    Tenant {
        /// Number of the tenant, from 1 on.
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        tenant: u64,
        /// Folder to write to; it is made when it is missing.
        folder: PathBuf,
    },
}

/// Performs a fabric command.
///
/// # Errors
/// When the attach file cannot be used, or the fabric of what is measured can't be opened.
pub fn run(
    command: &FabricCommand,
    named: Option<&Path>,
    patience: Duration,
    output: Output,
) -> Result<Answer, CliError> {
    match command {
        FabricCommand::Info => info(named, output),
        FabricCommand::Bench(arguments) => probe::run(arguments, named, patience),
        FabricCommand::Answer { provider, port } => probe::serve(provider, *port),
        FabricCommand::Tenant { tenant, folder } => give_out(named, TenantId(*tenant), folder),
    }
}

/// Without an attach file, only what the machine has.
fn info(named: Option<&Path>, output: Output) -> Result<Answer, CliError> {
    let started = Instant::now();
    let offers = weir_fabric::providers().map_err(|error| weir_client::Error::Fabric {
        provider: "any".to_owned(),
        reason: error.to_string(),
    })?;
    output.timing("asking the providers", started);
    let attach = match connection::find_attach(named) {
        Err(_) if named.is_none() => None,
        found => Some(found),
    };
    let providers: Vec<Value> = offers.iter().map(describe).collect();
    let mut response = json!({"providers": providers});
    let opened = attach.map(|found| found.and_then(|path| endpoint(&path, output)));
    let (system, about) = match opened.transpose() {
        // What the machine has helps to see why.
        Err(error) => return Ok(Answer::new(response, overview(&offers)).but(error)),
        Ok(opened) => opened.unwrap_or_default(),
    };
    if let (Value::Object(whole), Value::Object(part)) = (&mut response, system) {
        whole.extend(part);
    }
    let about = if about.is_empty() { about } else { about + "\n" };
    Ok(Answer::new(response, about + &overview(&offers)))
}

/// Derives a tenant's key, and writes what its clients need: addresses and that key, nothing of the system's.
fn give_out(named: Option<&Path>, tenant: TenantId, folder: &Path) -> Result<Answer, CliError> {
    let path = connection::find_attach(named)?;
    let attach = AttachFile::load(&path)?;
    let key_file = attach.system_key_file.ok_or_else(|| CliError::AttachFile {
        path: path.clone(),
        reason: "it is a tenant's; use the one that has the system key".to_owned(),
    })?;
    let wrong = |reason: String| CliError::AttachFile { path: key_file.clone(), reason };
    let text = fs::read_to_string(&key_file).map_err(|error| wrong(error.to_string()))?;
    let key = SystemKey::parse(&text).map_err(|error| wrong(error.to_string()))?.tenant(tenant);
    let failed = |error| CliError::io(folder.display().to_string(), error);
    fs::create_dir_all(folder).map_err(failed)?;
    write_private(&folder.join(TENANT_KEY), format!("{}\n", base64(key.bytes())).as_bytes())?;
    let mut theirs = json!({
        "system": attach.system,
        "provider": attach.provider,
        "engines": attach.engines,
        "tenant": tenant.0,
        "tenant_key_file": TENANT_KEY,
    });
    if let Some(addresses) = attach.fabric_addresses {
        theirs["fabric_addresses"] = addresses.into();
    }
    let file = folder.join("client.json");
    fs::write(&file, format!("{theirs:#}\n")).map_err(failed)?;
    let response = json!({"tenant": tenant.0, "attach_file": file});
    Ok(Answer::new(response, format!("Clients of tenant {tenant} use {}\n", file.display())))
}

/// Opens an endpoint as a client of the system does.
fn endpoint(path: &Path, output: Output) -> Result<(Value, String), CliError> {
    let attach = Attach::load(Some(path)).map_err(weir_client::Error::from)?;
    let started = Instant::now();
    let context = Context::real(&attach)?;
    output.timing("client init", started);
    let opened = started.elapsed().as_micros();
    let address = context.rpc().endpoint().spelled();
    drop(context);
    let targets: u32 = attach.engines.iter().map(|engine| engine.targets).sum();
    let text = fields(&[
        ("System", attach.system.clone()),
        ("Provider", attach.provider.clone()),
        ("Engines", attach.engines.len().to_string()),
        ("Targets", targets.to_string()),
        ("Attach file", path.display().to_string()),
        ("Address", address.clone()),
        ("Endpoint opened in", format!("{opened} us")),
    ]);
    let response = json!({
        "system": attach.system,
        "provider": attach.provider,
        "engines": attach.engines.len(),
        "targets": targets,
        "attach_file": path,
        "address": address,
        "open_microseconds": u64::try_from(opened).unwrap_or(u64::MAX),
    });
    Ok((response, text))
}

fn describe(offer: &Offer) -> Value {
    let Some(found) = &offer.capabilities else {
        return json!({"provider": offer.provider, "usable": false, "missing": offer.missing});
    };
    let abilities: serde_json::Map<String, Value> =
        found.flags().iter().map(|(name, on)| ((*name).to_owned(), json!(on))).collect();
    let limits: serde_json::Map<String, Value> =
        found.sizes().iter().map(|(name, bytes)| ((*name).to_owned(), json!(bytes))).collect();
    json!({
        "provider": offer.provider,
        "usable": true,
        "version": found.version,
        "library": found.library,
        "wait": found.wait.to_string(),
        "abilities": abilities,
        "limits": limits,
    })
}

/// One line for each provider that can be used, and one for the others.
fn overview(offers: &[Offer]) -> String {
    let usable: Vec<&Capabilities> = offers.iter().filter_map(|offer| offer.capabilities.as_ref()).collect();
    let mut rows = vec![vec!["Provider".to_owned(), "Library".to_owned(), "Wait".to_owned()]];
    if let Some(first) = usable.first() {
        rows[0].extend(first.flags().iter().map(|(name, _)| (*name).to_owned()));
        rows[0].extend(first.sizes().iter().map(|(name, _)| (*name).to_owned()));
    }
    for found in usable {
        let mut row = vec![found.provider.clone(), found.library.clone(), found.wait.to_string()];
        row.extend(found.flags().iter().map(|(_, on)| if *on { "yes" } else { "-" }.to_owned()));
        row.extend(found.sizes().iter().map(|(_, bytes)| size(*bytes)));
        rows.push(row);
    }
    let mut text = table(&rows);
    for offer in offers.iter().filter(|offer| offer.capabilities.is_none()) {
        let missing = offer.missing.join(", ");
        let _ = writeln!(text, "{} can't be used: it lacks {missing}", offer.provider);
    }
    text
}

/// A size that the provider sets, or its word for "any".
fn size(bytes: usize) -> String {
    if bytes >= usize::MAX >> 1 { "any".to_owned() } else { bytes.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_of_this_machine_are_listed_with_what_they_can_and_lack() {
        let offers = weir_fabric::providers().expect("the library answers");
        let text = overview(&offers);
        let json: Vec<Value> = offers.iter().map(describe).collect();
        let of = |name: &str| json.iter().find(|one| one["provider"] == name).expect("built in");
        assert_eq!((&of("tcp")["usable"], &of("tcp")["abilities"]["source"]), (&json!(true), &json!(true)));
        assert_eq!(of("tcp")["wait"], "fd-set");
        assert_eq!(
            (&of("shm")["wait"], &of("shm")["abilities"]["mr-virt-addr"]),
            (&json!("doorbell"), &json!(true))
        );
        for offer in &offers {
            assert_eq!(offer.capabilities.is_none(), !offer.missing.is_empty(), "{}", offer.provider);
            assert!(text.contains(&offer.provider), "{text}");
        }
    }
}
