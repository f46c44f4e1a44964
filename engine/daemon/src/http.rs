//! `/metrics`, `/healthz` and `/readyz` over HTTP/1.1: requests of a few hundred bytes, one to a connection.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Longest request that is read.
const REQUEST_MAX: usize = 8 * 1024;

/// Longest time for a whole exchange; a scrape has to wait for targets.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(15);

/// Most exchanges at once: a scraper or two and the kubelet's probes; more is abuse.
const EXCHANGES_MAX: usize = 32;

/// Pause after `accept` failed, so that a process without free descriptors doesn't spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An answer.
pub struct Page {
    /// HTTP status code.
    pub status: u16,
    /// Value of Content-Type.
    pub kind: &'static str,
    /// The body.
    pub body: String,
}

impl Page {
    /// A line of text.
    pub fn text(status: u16, body: impl Into<String>) -> Self {
        Self { status, kind: "text/plain; charset=utf-8", body: body.into() }
    }
}

/// Answers requests for paths until the task is dropped.
pub async fn serve<F, Fut>(listener: TcpListener, answer: F)
where
    F: Fn(String) -> Fut + Clone + 'static,
    Fut: Future<Output = Page> + 'static,
{
    let slots = std::rc::Rc::new(tokio::sync::Semaphore::new(EXCHANGES_MAX));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a metrics connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (slots, answer) = (std::rc::Rc::clone(&slots), answer.clone());
        tokio::task::spawn_local(async move {
            let Ok(_slot) = slots.try_acquire() else { return };
            match tokio::time::timeout(EXCHANGE_LIMIT, exchange(stream, answer)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "a metrics connection broke"),
                Err(_) => tracing::debug!("a metrics request took too long"),
            }
        });
    }
}

async fn exchange<F, Fut>(mut stream: TcpStream, answer: F) -> std::io::Result<()>
where
    F: Fn(String) -> Fut,
    Fut: Future<Output = Page>,
{
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        let len = stream.read(&mut piece).await?;
        if len == 0 || request.len() + len > REQUEST_MAX {
            break;
        }
        request.extend_from_slice(&piece[..len]);
    }
    let page = match path_of(&request) {
        Some(path) => answer(path).await,
        None => Page::text(400, "send a GET request\n"),
    };
    let reason = match page.status {
        200 => "OK",
        404 => "Not Found",
        503 => "Service Unavailable",
        _ => "Bad Request",
    };
    let head = format!(
        "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        page.status,
        page.kind,
        page.body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(page.body.as_bytes()).await?;
    stream.shutdown().await
}

/// The path of a GET request, without its query.
fn path_of(request: &[u8]) -> Option<String> {
    let line = request.split(|byte| *byte == b'\r').next()?;
    let mut words = core::str::from_utf8(line).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let path = target.split('?').next()?;
    (matches!(method, "GET" | "HEAD") && version.starts_with("HTTP/1.")).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_get_requests_have_a_path() {
        assert_eq!(path_of(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n").as_deref(), Some("/metrics"));
        for bad in
            [b"POST / HTTP/1.1\r\n".as_slice(), b"GET /", b"", b"\xff\xff \xff x\r\n", b"GET / FTP/1.1\r\n"]
        {
            assert_eq!(path_of(bad), None);
        }
    }
}
