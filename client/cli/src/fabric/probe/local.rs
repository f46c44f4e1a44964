//! The other side of a measurement within one machine: this program again, as a process that answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use weir_client::{Attach, EngineAddress};
use weir_fabric::{Addressing, Options};
use weir_probe::Listener;
use weir_proto::TenantId;
use weir_proto::capability::SystemKey;

use crate::error::CliError;
use crate::local::LOOPBACK;
use crate::output::Answer;
use crate::secret::random_key;
use crate::values::base64;

/// What the server says once it listens; another line says why it doesn't.
const READY: &str = "ready";

/// Longest text of a key that is read.
const KEY_TEXT_MAX: u64 = 64;

/// Longest wait for the other side to listen: providers open within a second, and a machine may be busy.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Longest wait for it to end after it was told to.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Between two looks whether it has ended.
const END_LOOK: Duration = Duration::from_millis(5);

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
        server.wait_until_ready(provider)?;
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
            device: None,
            addressing: Addressing::ByProvider,
        };
        Ok((server, attach))
    }

    /// Waits until it listens, or ends, or has had enough time for both.
    fn wait_until_ready(&mut self, provider: &str) -> Result<(), CliError> {
        let Some(output) = self.0.stdout.take() else { return Ok(()) };
        let (sender, line) = mpsc::channel();
        // The thread ends with the process at the latest, which the drop of this ends.
        thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(output).read_line(&mut line).map(|_| line);
            // The caller doesn't wait any more after the limit.
            let _ = sender.send(read);
        });
        match line.recv_timeout(START_LIMIT) {
            Ok(Ok(line)) if line.trim() == READY => Ok(()),
            Ok(Ok(reason)) => {
                let reason = Some(reason.trim()).filter(|reason| !reason.is_empty());
                let reason = reason.unwrap_or("the other side of the measurement has ended");
                let said = format!("nothing on this machine answers by {provider}: {reason}");
                let offers = weir_fabric::providers().unwrap_or_default();
                let is_known = offers.iter().any(|offer| offer.provider == provider);
                Err(if is_known { CliError::Dev(said) } else { CliError::Usage(said) })
            }
            Ok(Err(error)) => Err(CliError::io("hear from the other side of the measurement", error)),
            Err(_) => Err(CliError::Dev(format!(
                "{provider} did not open an endpoint on this machine within {} s",
                START_LIMIT.as_secs()
            ))),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let end = Instant::now() + END_LIMIT;
        while Instant::now() < end {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(END_LOOK);
        }
        // It may have ended by itself meanwhile.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Answers measurements of peers with the key that comes first on standard input, until that ends. When a provider
/// can't listen, the parent process reports it.
///
/// # Errors
/// When there is no key.
pub fn serve(provider: &str, port: u16) -> Result<Answer, CliError> {
    let failed = |error| CliError::io("standard input", error);
    let mut input = BufReader::new(std::io::stdin());
    let mut text = String::new();
    input.by_ref().take(KEY_TEXT_MAX).read_line(&mut text).map_err(failed)?;
    let key = SystemKey::parse(&text).map_err(|error| CliError::Usage(error.to_string()))?;
    let listener = Listener::start(Options::listen(provider, LOOPBACK, port), key);
    let said =
        listener.as_ref().map_or_else(|error| error.to_string().replace('\n', " "), |_| READY.to_owned());
    println!("{said}");
    std::io::stdout().flush().map_err(failed)?;
    if listener.is_err() {
        return Ok(Answer::new(serde_json::Value::Null, ""));
    }
    std::io::copy(&mut input, &mut std::io::sink()).map_err(failed)?;
    Ok(Answer::new(serde_json::Value::Null, ""))
}
