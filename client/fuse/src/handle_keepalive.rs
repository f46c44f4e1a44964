//! Keeps the handles of a mount alive. From them Kubernetes and operators learn which nodes use a container.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use weir_client::{Attach, Container, Context, ContextOptions, KEEP_EVERY};

/// How long one handle is tried to be kept: less than the time to the next turn.
const KEEP_LIMIT: Duration = Duration::from_secs(30);

/// Has handles kept until it is dropped.
#[derive(Debug)]
pub struct HandleKeepalive {
    _stop: Sender<()>,
}

impl HandleKeepalive {
    /// Has handles kept that were opened by a client of a node; `None` for a client of no node.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start(attach: &Attach, handles: Vec<Container>) -> io::Result<Option<Self>> {
        if ContextOptions::default().node.is_none() {
            return Ok(None);
        }
        let (stop, stopped) = channel::<()>();
        let attach = attach.clone();
        let keep = move || {
            while stopped.recv_timeout(KEEP_EVERY) == Err(RecvTimeoutError::Timeout) {
                if let Err(error) = keep_all(&attach, &handles) {
                    tracing::warn!(%error, "the pool service could not be told that the container is in use here");
                }
            }
        };
        std::thread::Builder::new().name("handles".into()).spawn(keep)?;
        Ok(Some(Self { _stop: stop }))
    }
}

/// What reaches the engines is made for this each time: it takes memory, and is used once in a while.
fn keep_all(attach: &Attach, handles: &[Container]) -> weir_client::Result<()> {
    let context = Context::real(attach)?;
    context.set_deadline(KEEP_LIMIT);
    context.block_on(async {
        for handle in handles {
            handle.keep(&context).await?;
        }
        Ok(())
    })
}
