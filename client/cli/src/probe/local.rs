//! The other side of a measurement within one machine: this program again, as a process that answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};

use weir_client::{Attach, EngineAddress};
use weir_fabric::Options;
use weir_probe::Listener;
use weir_proto::TenantId;
use weir_proto::capability::SystemKey;
use weir_rpc::Peer;

use crate::dev::identity::{LOOPBACK, base64, random_key};
use crate::error::CliError;
use crate::output::Answer;

/// What the server says once it listens.
const READY: &str = "ready";

/// Longest text of a key that is read.
const KEY_TEXT_MAX: u64 = 64;

/// A process that answers until this is dropped: it ends when its input does, also when this process is killed.
pub struct Server(Child);

impl Server {
    /// Starts one, and says how to reach it.
    pub fn start(provider: &str) -> Result<(Self, Attach), CliError> {
        let failed = |error| CliError::io("start the other side of the measurement", error);
        let key = random_key()?;
        // Shared memory has ports of its own; one that is free here is as good there as any.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
        let port = port.map_err(failed)?.port();
        let program = std::env::current_exe().map_err(failed)?;
        let child = Command::new(program)
            .args(["fabric", "answer", provider, &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut server = Self(child.map_err(failed)?);
        if let Some(input) = &mut server.0.stdin {
            input.write_all(format!("{}\n", base64(&key)).as_bytes()).map_err(failed)?;
        }
        let mut line = String::new();
        if let Some(output) = server.0.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(failed)?;
        }
        if line.trim() != READY {
            // It has said why.
            return Err(CliError::Dev(format!("nothing on this machine answers by {provider}")));
        }
        let engine = EngineAddress {
            rank: 0,
            host: LOOPBACK.to_owned(),
            fabric_port: port,
            targets: 1,
            management: String::new(),
        };
        let attach = Attach {
            system: "local".to_owned(),
            provider: provider.to_owned(),
            engines: vec![engine],
            key: SystemKey(key).tenant(TenantId::SYSTEM),
            auth_key: None,
        };
        Ok((server, attach))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It may have ended by itself.
        let _ = self.0.wait();
    }
}

/// Answers measurements of whoever knows the key that comes first on standard input, until that ends.
///
/// # Errors
/// When there is no key, or the provider can't listen.
pub fn serve(provider: &str, port: u16) -> Result<Answer, CliError> {
    let failed = |error| CliError::io("standard input", error);
    let mut input = BufReader::new(std::io::stdin());
    let mut text = String::new();
    input.by_ref().take(KEY_TEXT_MAX).read_line(&mut text).map_err(failed)?;
    let key = SystemKey::parse(&text).map_err(|error| CliError::Usage(error.to_string()))?;
    let listener = Listener::start(Options::listen(provider, LOOPBACK, port), key);
    let _listener = listener.map_err(|error| weir_client::Error::Fabric {
        provider: format!("{provider} at {}", Peer::new(LOOPBACK, port)),
        reason: error.to_string(),
    })?;
    println!("{READY}");
    std::io::stdout().flush().map_err(failed)?;
    std::io::copy(&mut input, &mut std::io::sink()).map_err(failed)?;
    Ok(Answer::new(serde_json::Value::Null, ""))
}
