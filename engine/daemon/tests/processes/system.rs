//! Engines as processes on loopback, with certificates and configuration of their own.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rcgen::string::Ia5String;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use tempfile::TempDir;
use weir_client::{Attach, Context, ContextOptions, EngineAddress};
use weir_fabric::Addressing;
use weir_management::v1::containers_client::ContainersClient;
use weir_management::v1::pools_client::PoolsClient;
use weir_management::v1::system_client::SystemClient;
use weir_management::{Role, TlsFiles};
use weir_proto::TenantId;
use weir_proto::capability::{EngineKey, SystemKey};

/// Longest wait for an engine to serve: a busy machine starts it in a second.
const START_LIMIT: Duration = Duration::from_secs(30);

const KEY_TEXT: &str = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
pub const KEY: SystemKey = SystemKey([7; 32]);
const ENGINE_KEY_TEXT: &str = "CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg=";
pub const ENGINE_KEY: EngineKey = EngineKey([8; 32]);

/// Whose the certificate "tenant-reader" is.
pub const TENANT: TenantId = TenantId(7);

/// Ports and files of one engine.
pub struct Engine {
    pub rank: u32,
    pub fabric_port: u16,
    pub management: String,
    pub metrics: String,
    pub config: PathBuf,
    pub data: PathBuf,
    pub child: Option<Child>,
}

/// Some engines.
pub struct System {
    pub folder: TempDir,
    pub targets: u16,
    pub engines: Vec<Engine>,
    provider: &'static str,
    addressing: Addressing,
}

/// Where ports of engines are looked for: below those that the system gives to outgoing connections, so that nobody
/// takes the port of an engine that is down for a while.
const PORTS: core::ops::Range<u16> = 24_000..32_000;

/// Ports that nobody listens on, one behind the other. Systems of one test process get ports apart; those of another
/// process begin elsewhere.
fn free_ports(count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let start = u16::try_from(std::process::id() % 400).unwrap_or(0) * 20;
    for _ in 0..1000 {
        let offset = start.wrapping_add(NEXT.fetch_add(count, Ordering::Relaxed));
        let first = PORTS.start + offset % (PORTS.end - PORTS.start - count);
        if (first..first + count).all(is_free) {
            return first;
        }
    }
    panic!("no {count} free ports in a row");
}

impl System {
    /// Writes certificates and configuration; starts nothing.
    pub fn prepare(engines: u32, targets: u16) -> Self {
        Self::prepare_by(("tcp", Addressing::ByProvider), engines, targets)
    }

    /// As [`System::prepare`], with another fabric provider, or addresses that are known from elsewhere.
    pub fn prepare_by(fabric: (&'static str, Addressing), engines: u32, targets: u16) -> Self {
        let (provider, addressing) = fabric;
        let folder = tempfile::tempdir().expect("a folder");
        write_identity(folder.path());
        fs::write(folder.path().join("system.key"), KEY_TEXT).expect("the key");
        fs::write(folder.path().join("engines.key"), ENGINE_KEY_TEXT).expect("the key");
        let engines = (0..engines).map(|rank| {
            let port = free_ports(targets + 2);
            Engine {
                rank,
                fabric_port: port,
                management: format!("127.0.0.1:{}", port + targets),
                metrics: format!("127.0.0.1:{}", port + targets + 1),
                config: folder.path().join(format!("engine-{rank}.toml")),
                data: folder.path().join(format!("data-{rank}")),
                child: None,
            }
        });
        let engines = engines.collect();
        let system = Self { folder, targets, engines, provider, addressing };
        for engine in &system.engines {
            fs::write(&engine.config, system.configuration(engine)).expect("the configuration");
        }
        system
    }

    /// Prepares and starts engines, and waits until they serve.
    pub fn start(engines: u32, targets: u16) -> Self {
        Self::start_by(("tcp", Addressing::ByProvider), engines, targets)
    }

    /// As [`System::start`], with another fabric provider, or addresses that are known from elsewhere.
    pub fn start_by(fabric: (&'static str, Addressing), engines: u32, targets: u16) -> Self {
        let mut system = Self::prepare_by(fabric, engines, targets);
        for rank in 0..system.engines.len() {
            system.spawn(rank);
        }
        system.wait_ready();
        system
    }

    fn configuration(&self, engine: &Engine) -> String {
        let mut text = format!(
            r#"
            system = "test"
            rank = {}
            provider = "{}"
            {}
            host = "127.0.0.1"
            fabric_port = {}
            targets = {}
            management_listen = "{}"
            metrics_listen = "{}"
            data = "{}"
            target_size = "192MiB"
            log = "info"
            [tls]
            ca = "ca.crt"
            cert = "tls.crt"
            key = "tls.key"
            [auth]
            system_key = "system.key"
            engine_key = "engines.key"
            "#,
            engine.rank,
            self.provider,
            self.addressing.name().map(|name| format!("fabric_addresses = \"{name}\"")).unwrap_or_default(),
            engine.fabric_port,
            self.targets,
            engine.management,
            engine.metrics,
            engine.data.display()
        );
        for other in &self.engines {
            let section = format!(
                "[[engines]]\nrank = {}\nhost = \"127.0.0.1\"\nfabric_port = {}\ntargets = {}\nmanagement = \"{}\"\n",
                other.rank, other.fabric_port, self.targets, other.management
            );
            text.push_str(&section);
        }
        text
    }

    pub fn spawn(&mut self, rank: usize) {
        let log = fs::File::create(self.folder.path().join(format!("engine-{rank}.log"))).expect("a log");
        let engine = &mut self.engines[rank];
        let child = Command::new(env!("CARGO_BIN_EXE_weir-engine"))
            .arg("--config")
            .arg(&engine.config)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        engine.child = Some(child.expect("the engine runs"));
    }

    pub fn log(&self, rank: usize) -> String {
        fs::read_to_string(self.folder.path().join(format!("engine-{rank}.log"))).expect("a log")
    }

    /// SIGKILL.
    pub fn kill(&mut self, rank: usize) {
        let mut child = self.engines[rank].child.take().expect("it runs");
        child.kill().expect("it can be killed");
        child.wait().expect("it has ended");
    }

    /// SIGTERM; how the engine ended.
    pub fn terminate(&mut self, rank: usize) -> ExitStatus {
        let mut child = self.engines[rank].child.take().expect("it runs");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it can be signalled");
        wait_for_exit(&mut child)
    }

    /// Starts an engine that is expected to end by itself; its exit code and what it said.
    pub fn run_to_end(&mut self, rank: usize) -> (Option<i32>, String) {
        self.spawn(rank);
        let mut child = self.engines[rank].child.take().expect("it runs");
        let status = wait_for_exit(&mut child);
        (status.code(), self.log(rank))
    }

    pub fn wait_ready(&mut self) {
        let until = Instant::now() + START_LIMIT;
        for rank in 0..self.engines.len() {
            if self.engines[rank].child.is_none() {
                continue;
            }
            while !self.get(rank, "/readyz").starts_with("HTTP/1.1 200") {
                let ended =
                    self.engines[rank].child.as_mut().and_then(|child| child.try_wait().ok().flatten());
                assert!(ended.is_none(), "engine {rank} has ended: {}", self.log(rank));
                assert!(Instant::now() < until, "engine {rank} does not serve: {}", self.log(rank));
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// An HTTP answer of the metrics port; empty when there is none.
    pub fn get(&self, rank: usize, path: &str) -> String {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(&self.engines[rank].metrics)?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().unwrap_or_default()
    }

    /// The value of a series, by the start of its line.
    pub fn metric(&self, rank: usize, series: &str) -> Option<f64> {
        let text = self.get(rank, "/metrics");
        let line = text.lines().find(|line| line.starts_with(series))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    pub fn tls(&self) -> TlsFiles {
        self.tls_of("tls")
    }

    /// The identity that [`write_identity`] made under this name.
    fn tls_of(&self, name: &str) -> TlsFiles {
        let file = |name: &str| self.folder.path().join(name);
        TlsFiles { ca: file("ca.crt"), cert: file(&format!("{name}.crt")), key: file(&format!("{name}.key")) }
    }

    /// A connection to an engine's management with an identity that [`write_identity`] made.
    pub fn channel_as(&self, name: &str, rank: usize) -> tonic::transport::Channel {
        self.tls_of(name).channel(&self.engines[rank].management).expect("good files")
    }

    pub fn attach(&self) -> Attach {
        let engines = self.engines.iter().map(|engine| EngineAddress {
            rank: engine.rank,
            host: "127.0.0.1".to_owned(),
            fabric_port: engine.fabric_port,
            targets: self.targets.into(),
            management: engine.management.clone(),
        });
        Attach {
            system: "test".to_owned(),
            provider: self.provider.to_owned(),
            engines: engines.collect(),
            key: KEY.tenant(TenantId::SYSTEM),
            auth_key: None,
            device: None,
            addressing: self.addressing,
        }
    }

    pub fn context(&self, deadline: Duration) -> Context {
        let options = ContextOptions { deadline, uid: 1000, gid: 1000, node: None };
        Context::real_with(&self.attach(), options).expect("a client on loopback")
    }

    pub fn pools(&self, rank: usize) -> PoolsClient<tonic::transport::Channel> {
        PoolsClient::new(self.tls().channel(&self.engines[rank].management).expect("good files"))
    }

    pub fn containers(&self, rank: usize) -> ContainersClient<tonic::transport::Channel> {
        ContainersClient::new(self.tls().channel(&self.engines[rank].management).expect("good files"))
    }

    pub fn system(&self, rank: usize) -> SystemClient<tonic::transport::Channel> {
        SystemClient::new(self.tls().channel(&self.engines[rank].management).expect("good files"))
    }
}

impl Drop for System {
    fn drop(&mut self) {
        for engine in &mut self.engines {
            if let Some(mut child) = engine.child.take() {
                drop(child.kill());
                drop(child.wait());
            }
        }
    }
}

fn wait_for_exit(child: &mut Child) -> ExitStatus {
    let until = Instant::now() + START_LIMIT;
    loop {
        if let Some(status) = child.try_wait().expect("it can be waited for") {
            return status;
        }
        assert!(Instant::now() < until, "the engine does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An authority and an identity for engines and operator in `tls`; beside it one for each other role, under the role's name.
pub fn write_identity(folder: &Path) {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority =
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
    fs::write(folder.join("ca.crt"), authority.pem()).expect("ca");
    write_certificate(folder, &authority, "tls", &Role::Operator.uris());
    for role in [Role::Provisioner, Role::TenantReader(TENANT), Role::Metrics] {
        write_certificate(folder, &authority, role.name(), &role.uris());
    }
    write_certificate(folder, &authority, "nobody", &[]);
}

fn write_certificate(
    folder: &Path,
    authority: &CertifiedIssuer<'static, KeyPair>,
    name: &str,
    uris: &[String],
) {
    let key = KeyPair::generate().expect("a key");
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let mut params = CertificateParams::new(names).expect("parameters");
    let uri = |text: &String| SanType::URI(Ia5String::try_from(text.as_str()).expect("ASCII"));
    params.subject_alt_names.extend(uris.iter().map(uri));
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let certificate = params.signed_by(&key, authority).expect("a certificate");
    fs::write(folder.join(format!("{name}.crt")), certificate.pem()).expect("cert");
    fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect("key");
}
