//! Mutual TLS over loopback: who gets in, who doesn't, and what happens when certificates are replaced.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};
use weir_management::v1::system_client::SystemClient;
use weir_management::v1::system_server::{System, SystemServer};
use weir_management::v1::{
    AttachRequest, AttachResponse, ClearDeviceRequest, ClearDeviceResponse, SystemQueryRequest,
    SystemQueryResponse,
};
use weir_management::{Failure, RotatingServer, TlsError, TlsFiles, failure_of, incoming};
use weir_proto::Der;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

fn write_identity(folder: &Path, authority: &Authority) -> TlsFiles {
    fs::create_dir_all(folder).expect("a folder");
    let files =
        TlsFiles { ca: folder.join("ca.crt"), cert: folder.join("tls.crt"), key: folder.join("tls.key") };
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
    let certificate = params.signed_by(&key, authority).expect("a certificate");
    fs::write(&files.ca, authority.pem()).expect("ca");
    fs::write(&files.cert, certificate.pem()).expect("cert");
    fs::write(&files.key, key.serialize_pem()).expect("key");
    files
}

struct Answer;

#[tonic::async_trait]
impl System for Answer {
    async fn attach(&self, _: Request<AttachRequest>) -> Result<Response<AttachResponse>, Status> {
        Ok(Response::new(AttachResponse { system: "weir".to_owned(), ..AttachResponse::default() }))
    }

    async fn query(&self, _: Request<SystemQueryRequest>) -> Result<Response<SystemQueryResponse>, Status> {
        Err(Failure::new(Der::NONEXIST, "pool tank", "pool tank does not exist").into())
    }

    async fn clear_device(
        &self,
        _: Request<ClearDeviceRequest>,
    ) -> Result<Response<ClearDeviceResponse>, Status> {
        Ok(Response::new(ClearDeviceResponse { was_faulty: false }))
    }
}

async fn serve(files: &TlsFiles) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let tls = RotatingServer::load(files.clone()).expect("good files");
    tokio::spawn(
        Server::builder().add_service(SystemServer::new(Answer)).serve_with_incoming(incoming(listener, tls)),
    );
    format!("localhost:{port}")
}

async fn attach(files: &TlsFiles, address: &str) -> Result<String, Status> {
    let mut client = SystemClient::new(files.channel(address).expect("good files"));
    client.attach(AttachRequest {}).await.map(|response| response.into_inner().system)
}

#[tokio::test]
async fn peers_of_one_authority_talk_and_others_do_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let ours = authority();
    let server = write_identity(&folder.path().join("server"), &ours);
    let address = serve(&server).await;
    let client = write_identity(&folder.path().join("client"), &ours);
    assert_eq!(attach(&client, &address).await.expect("our client"), "weir");

    let mut channel = SystemClient::new(client.channel(&address).expect("good files"));
    let status = channel.query(SystemQueryRequest {}).await.expect_err("a failure");
    assert_eq!((status.code(), failure_of(&status).der), (Code::NotFound, Der::NONEXIST));

    let foreign = write_identity(&folder.path().join("foreign"), &authority());
    let trusting = TlsFiles { ca: client.ca.clone(), ..foreign.clone() };
    assert!(attach(&trusting, &address).await.is_err(), "the server refuses a foreign client");
    let distrusting = TlsFiles { ca: foreign.ca, ..client };
    assert!(attach(&distrusting, &address).await.is_err(), "the client refuses a foreign server");
}

#[tokio::test]
async fn connections_after_a_rotation_use_the_new_certificates() {
    let folder = tempfile::tempdir().expect("a folder");
    let server_folder = folder.path().join("server");
    let server = write_identity(&server_folder, &authority());
    let address = serve(&server).await;
    let renewed = authority();
    let client = write_identity(&folder.path().join("client"), &renewed);
    assert!(attach(&client, &address).await.is_err(), "not known yet");

    tokio::time::sleep(Duration::from_millis(1100)).await;
    fs::write(&server.key, "half a rotation").expect("key");
    assert!(attach(&client, &address).await.is_err(), "the old certificates stay in use");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    write_identity(&server_folder, &renewed);
    assert_eq!(attach(&client, &address).await.expect("the new authority's client"), "weir");
}

#[test]
fn unusable_files_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let ours = authority();
    let good = write_identity(&folder.path().join("a"), &ours);
    let other = write_identity(&folder.path().join("b"), &ours);

    let missing = TlsFiles { cert: folder.path().join("none.crt"), ..good.clone() };
    let error = missing.server_config().expect_err("a missing file");
    assert!(error.to_string().contains("none.crt can't be read"), "{error}");
    let swapped = TlsFiles { cert: good.key.clone(), ..good.clone() };
    let error = swapped.client_config().expect_err("a key in place of a certificate");
    assert!(error.to_string().contains("holds no certificate in PEM format"), "{error}");
    let mixed = TlsFiles { key: other.key, ..good };
    assert!(matches!(mixed.server_config(), Err(TlsError::Identity { .. })));
}

#[tokio::test]
async fn connections_that_say_nothing_keep_nobody_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let identity = write_identity(folder.path(), &authority());
    let address = serve(&identity).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(&address).await.expect("it listens"));
    }
    let asked = tokio::time::timeout(Duration::from_secs(30), attach(&identity, &address)).await;
    assert_eq!(asked.expect("an answer").expect("our client"), "weir");
    drop(silent);
}
