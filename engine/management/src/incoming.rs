//! Accepted TLS connections as the stream that tonic serves.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::Origin;
use crate::connections::{ConnectionLimits, ConnectionSlot, Connections};
use crate::tls::RotatingServer;

/// Longest TLS handshake, and longest silence behind it before the first request: some round trips of the slowest network,
/// and a lost packet.
const SILENCE_LIMIT: Duration = Duration::from_secs(5);

/// Handshakes at once. A handshake costs about a millisecond of CPU.
const HANDSHAKES: ConnectionLimits = ConnectionLimits { all: 64, peer: 16 };

/// Connections at once that have passed it. Operator and command lines have a few, and each node's CSI driver one.
const CONNECTIONS: ConnectionLimits = ConnectionLimits { all: 4096, peer: 256 };

/// Pause after `accept` failed, so that a process without free descriptors doesn't spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections that have passed the handshake.
pub type Incoming = ReceiverStream<io::Result<Connection>>;

/// Limits of a listener.
#[derive(Clone, Copy)]
struct Limits {
    silence: Duration,
    handshakes: ConnectionLimits,
    connections: ConnectionLimits,
}

const LIMITS: Limits = Limits { silence: SILENCE_LIMIT, handshakes: HANDSHAKES, connections: CONNECTIONS };

/// Accepts connections from `listener` for as long as the returned stream lives. Must be called on a tokio runtime.
///
/// They are bounded in number; when they are too many, those end of the peer that has most that have been silent for longest.
#[must_use]
pub fn incoming(listener: TcpListener, tls: RotatingServer) -> Incoming {
    incoming_within(listener, tls, LIMITS)
}

fn incoming_within(listener: TcpListener, tls: RotatingServer, limits: Limits) -> Incoming {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(accept(listener, tls, limits, sender));
    ReceiverStream::new(receiver)
}

async fn accept(
    listener: TcpListener,
    mut tls: RotatingServer,
    limits: Limits,
    sender: mpsc::Sender<io::Result<Connection>>,
) {
    let (strangers, connections) =
        (Connections::new(limits.handshakes), Connections::new(limits.connections));
    loop {
        let accepted = tokio::select! {
            () = sender.closed() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a management connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (acceptor, sender, connections) =
            (TlsAcceptor::from(tls.current()), sender.clone(), connections.clone());
        let mut place = strangers.admit(peer.ip());
        tokio::spawn(async move {
            let shaken = tokio::select! {
                () = place.evicted() => Err(evicted()),
                shaken = handshake(&acceptor, stream, limits.silence) => shaken,
            };
            match shaken {
                Ok(stream) => {
                    let silence = Some(Box::pin(tokio::time::sleep(limits.silence)));
                    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                    let origin = Origin::new(shown, peer);
                    let connection =
                        Connection { stream, origin, place: connections.admit(peer.ip()), silence };
                    // The receiver is gone only when the server shuts down.
                    drop(sender.send(Ok(connection)).await);
                }
                Err(error) => tracing::debug!(%peer, %error, "TLS handshake failed"),
            }
        });
    }
}

async fn handshake(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    limit: Duration,
) -> io::Result<TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    tokio::time::timeout(limit, acceptor.accept(stream)).await?
}

fn evicted() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "others needed its place")
}

/// A connection that has passed the handshake. Reading it fails when others need its place, or when nothing comes first.
pub struct Connection {
    stream: TlsStream<TcpStream>,
    origin: Origin,
    place: ConnectionSlot,
    /// Until something has come.
    silence: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.place.poll_evicted(cx).is_ready() {
            return Poll::Ready(Err(evicted()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.silence = None;
            self.place.heard();
        }
        let is_late = |silence: &mut Pin<Box<Sleep>>| silence.as_mut().poll(cx).is_ready();
        if read.is_pending() && self.silence.as_mut().is_some_and(is_late) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connected for Connection {
    type ConnectInfo = Origin;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.origin.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::Path;
    use std::sync::Arc;

    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};
    use tokio_stream::StreamExt;

    use super::*;
    use crate::TlsFiles;

    type Connection = tokio_rustls::client::TlsStream<TcpStream>;

    /// Longer than anything takes that happens at all.
    const NEVER: Duration = Duration::from_secs(20);

    fn identity(folder: &Path) -> TlsFiles {
        let files = ["ca.crt", "tls.crt", "tls.key"].map(|name| folder.join(name));
        let [ca, cert, key] = files;
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ours = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(params, ours).expect("an authority");
        let own = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
        let certificate = params.signed_by(&own, &authority).expect("a certificate");
        let content = [authority.pem(), certificate.pem(), own.serialize_pem()];
        for (path, text) in [&ca, &cert, &key].into_iter().zip(content) {
            std::fs::write(path, text).expect("a file");
        }
        TlsFiles { ca, cert, key }
    }

    async fn connect(address: SocketAddr, files: &TlsFiles) -> Connection {
        let read = |path: &Path| std::fs::read(path).expect("a file");
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(&read(&files.ca)).expect("PEM");
        roots.add(authority).expect("an authority");
        let own = CertificateDer::from_pem_slice(&read(&files.cert)).expect("PEM");
        let key = PrivateKeyDer::from_pem_slice(&read(&files.key)).expect("PEM");
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = config.with_client_auth_cert(vec![own], key).expect("an identity");
        let connector = TlsConnector::from(Arc::new(config));
        let stream = TcpStream::connect(address).await.expect("it listens");
        let name = ServerName::try_from("localhost").expect("a name");
        connector.connect(name, stream).await.expect("of the same authority")
    }

    /// Accepts within these limits, and answers each byte with itself.
    async fn echo(limits: Limits, files: &TlsFiles) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it has one");
        let tls = RotatingServer::load(files.clone()).expect("good files");
        let mut accepted = incoming_within(listener, tls, limits);
        tokio::spawn(async move {
            while let Some(Ok(mut connection)) = accepted.next().await {
                tokio::spawn(async move {
                    while let Ok(byte) = connection.read_u8().await {
                        connection.write_u8(byte).await?;
                        connection.flush().await?;
                    }
                    io::Result::Ok(())
                });
            }
        });
        address
    }

    async fn ask(connection: &mut Connection) -> io::Result<u8> {
        connection.write_u8(7).await?;
        tokio::time::timeout(NEVER, connection.read_u8()).await?
    }

    #[tokio::test]
    async fn of_many_connections_those_end_that_say_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = identity(folder.path());
        let room = ConnectionLimits { all: 3, peer: 3 };
        let address = echo(Limits { silence: NEVER, connections: room, ..LIMITS }, &files).await;
        let (mut busy, mut idle) = (connect(address, &files).await, connect(address, &files).await);
        assert_eq!(ask(&mut idle).await.expect("an answer"), 7);
        let mut others = Vec::new();
        for _ in 0..10 {
            assert_eq!(ask(&mut busy).await.expect("an answer"), 7);
            let mut other = connect(address, &files).await;
            assert_eq!(ask(&mut other).await.expect("an answer"), 7);
            others.push(other);
        }
        assert!(ask(&mut idle).await.is_err(), "others needed its place");
    }

    #[tokio::test]
    async fn who_says_nothing_behind_the_handshake_is_hung_up_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = identity(folder.path());
        let silence = Duration::from_millis(500);
        let address = echo(Limits { silence, ..LIMITS }, &files).await;
        let mut talks = connect(address, &files).await;
        assert_eq!(ask(&mut talks).await.expect("an answer"), 7);
        let mut silent = connect(address, &files).await;
        let ended = tokio::time::timeout(NEVER, silent.read_u8()).await;
        assert!(matches!(ended, Ok(Err(_))), "{ended:?}");
        assert_eq!(ask(&mut talks).await.expect("it stays"), 7);
    }
}
