//! Accepted TLS connections as the stream that tonic serves.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;

use crate::tls::RotatingServer;

/// Longest TLS handshake: a peer that says nothing must not hold a slot for ever.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Most handshakes at once. A handshake costs about a millisecond of CPU; further connections wait in the backlog.
const HANDSHAKES_MAX: usize = 64;

/// Pause after `accept` failed, so that a process without free descriptors doesn't spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections that have passed the handshake.
pub type Incoming = ReceiverStream<io::Result<TlsStream<TcpStream>>>;

/// Accepts connections from `listener` for as long as the returned stream lives. Must be called on a tokio runtime.
#[must_use]
pub fn incoming(listener: TcpListener, tls: RotatingServer) -> Incoming {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(accept(listener, tls, sender));
    ReceiverStream::new(receiver)
}

async fn accept(
    listener: TcpListener,
    mut tls: RotatingServer,
    sender: mpsc::Sender<io::Result<TlsStream<TcpStream>>>,
) {
    let slots = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
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
        let acceptor = TlsAcceptor::from(tls.current());
        let sender = sender.clone();
        tokio::spawn(async move {
            let _slot = slot;
            match handshake(&acceptor, stream).await {
                // The receiver is gone only when the server shuts down.
                Ok(stream) => drop(sender.send(Ok(stream)).await),
                Err(error) => tracing::debug!(%peer, %error, "TLS handshake failed"),
            }
        });
    }
}

async fn handshake(acceptor: &TlsAcceptor, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await?
}
