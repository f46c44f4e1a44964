//! A listener for metrics and health: answers `GET` of a few paths and closes the connection.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Longest request head, in bytes: a scraper sends a few hundred.
const HEAD_MAX: usize = 8 * 1024;

/// How long a peer may take to send its request and take its answer. A scrape interval is rarely shorter.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(10);

/// Connections served at once; more wait in the listen queue. Scrapers and probes come one at a time.
const CONNECTIONS_MAX: usize = 16;

/// An answer.
#[derive(Clone, Debug)]
pub struct Page {
    /// HTTP status and its reason.
    pub status: &'static str,
    /// Plain text.
    pub body: String,
}

impl Page {
    /// A page that was found.
    #[must_use]
    pub fn ok(body: String) -> Self {
        Self { status: "200 OK", body }
    }

    /// Says that the service cannot do its work now, and why.
    #[must_use]
    pub fn unavailable(why: &str) -> Self {
        Self { status: "503 Service Unavailable", body: format!("{why}\n") }
    }
}

/// Answers requests for as long as it is polled. `answer` returns the page of a path, or none for one that is not known.
/// Runs inside a [`tokio::task::LocalSet`].
///
/// # Errors
/// When the address cannot be listened at.
pub async fn serve<F, Fut>(address: SocketAddr, answer: F) -> io::Result<()>
where
    F: Fn(String) -> Fut + 'static,
    Fut: Future<Output = Option<Page>> + 'static,
{
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "serving metrics and health");
    let answer = Rc::new(answer);
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok((stream, _)) => {
                let answer = Rc::clone(&answer);
                tokio::task::spawn_local(async move {
                    let exchange = exchange(stream, |path| answer(path));
                    if tokio::time::timeout(EXCHANGE_LIMIT, exchange).await.is_err() {
                        tracing::debug!("a peer of the metrics listener took too long");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: the next attempt needs one to be closed first.
                tracing::warn!(%error, "accept on the metrics listener failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn exchange<Fut: Future<Output = Option<Page>>>(
    mut stream: TcpStream,
    answer: impl Fn(String) -> Fut,
) -> io::Result<()> {
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|window| window == b"\r\n\r\n") && head.len() < HEAD_MAX {
        let read = stream.read(&mut chunk).await?;
        if read == 0 {
            break;
        }
        head.extend_from_slice(&chunk[..read]);
    }
    let page = match parse_path(&head) {
        Ok(path) => {
            answer(path).await.unwrap_or(Page { status: "404 Not Found", body: "no such page\n".into() })
        }
        Err(status) => Page { status, body: format!("{status}\n") },
    };
    let reply = format!(
        "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
        page.status,
        page.body.len(),
        page.body
    );
    stream.write_all(reply.as_bytes()).await?;
    stream.shutdown().await
}

/// The path of a request head, without its query.
fn parse_path(head: &[u8]) -> Result<String, &'static str> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = str::from_utf8(line).map_err(|_| "400 Bad Request")?;
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if !words.next().is_some_and(|version| version.starts_with("HTTP/1.")) || !path.starts_with('/') {
        return Err("400 Bad Request");
    }
    if method != "GET" {
        return Err("405 Method Not Allowed");
    }
    Ok(path.split('?').next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_well_formed_gets_are_answered() {
        assert_eq!(parse_path(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"), Ok("/metrics".into()));
        assert_eq!(parse_path(b"POST /metrics HTTP/1.1\r\n\r\n"), Err("405 Method Not Allowed"));
        for malformed in [&b""[..], b"GET", b"GET metrics HTTP/1.1\r\n", b"GET /x SPDY\r\n", b"\xff\xfe\r\n"]
        {
            assert_eq!(parse_path(malformed), Err("400 Bad Request"));
        }
    }
}
