//! Pages for probes and scrapers over HTTP/1.1: requests of a few hundred bytes, one to a connection.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::connections::{ConnectionLimits, Connections};

/// Longest request head that is read, in bytes: a scraper sends a few hundred.
const HEAD_MAX: usize = 8 * 1024;

/// Longest wait for a request: less than a probe waits for its answer.
const HEAD_LIMIT: Duration = Duration::from_secs(5);

/// Longest time for a whole exchange; a scrape has to wait for targets.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(15);

/// Connections at once: a scraper or two and the kubelet's probes of many peers, and few descriptors.
const ROOM: ConnectionLimits = ConnectionLimits { all: 64, peer: 16 };

/// Pause after `accept` failed, so that a process without free descriptors doesn't spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An answer.
#[derive(Clone, Debug)]
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

/// Answers requests for paths for as long as it is polled, on a [`tokio::task::LocalSet`]. Connections are bounded in
/// number and time; when they are too many, those of the peer that has most end.
pub async fn serve_pages<F, Fut>(listener: TcpListener, answer: F)
where
    F: Fn(String) -> Fut + 'static,
    Fut: Future<Output = Page> + 'static,
{
    serve_within(listener, HEAD_LIMIT, answer).await;
}

async fn serve_within<F, Fut>(listener: TcpListener, head_limit: Duration, answer: F)
where
    F: Fn(String) -> Fut + 'static,
    Fut: Future<Output = Page> + 'static,
{
    let (connections, answer) = (Connections::new(ROOM), Rc::new(answer));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a metrics connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (mut place, answer) = (connections.admit(peer.ip()), Rc::clone(&answer));
        tokio::task::spawn_local(async move {
            let exchange = exchange(stream, head_limit, answer.as_ref());
            let done = tokio::select! {
                () = place.evicted() => Err(io::Error::other("others needed its place")),
                done = tokio::time::timeout(EXCHANGE_LIMIT, exchange) => done.unwrap_or_else(|late| Err(late.into())),
            };
            if let Err(error) = done {
                tracing::debug!(%peer, %error, "a metrics connection broke");
            }
        });
    }
}

async fn exchange<F, Fut>(mut stream: TcpStream, head_limit: Duration, answer: &F) -> io::Result<()>
where
    F: Fn(String) -> Fut,
    Fut: Future<Output = Page>,
{
    let head = tokio::time::timeout(head_limit, head(&mut stream)).await??;
    let page = match path_of(&head) {
        Ok(path) => answer(path).await,
        Err(page) => page,
    };
    let reason = match page.status {
        200 => "OK",
        404 => "Not Found",
        405 => "Method Not Allowed",
        503 => "Service Unavailable",
        _ => "Bad Request",
    };
    let reply = format!(
        "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        page.status,
        page.kind,
        page.body.len()
    );
    stream.write_all(reply.as_bytes()).await?;
    stream.write_all(page.body.as_bytes()).await?;
    stream.shutdown().await
}

/// What a peer asks: up to the empty line, or as much as it sends.
async fn head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let len = stream.read(&mut piece).await?;
        if len == 0 || head.len() + len > HEAD_MAX {
            break;
        }
        head.extend_from_slice(&piece[..len]);
    }
    Ok(head)
}

/// The path of a GET request, without its query.
fn path_of(head: &[u8]) -> Result<String, Page> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = core::str::from_utf8(line).unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version)) = (words.next(), words.next(), words.next()) else {
        return Err(Page::text(400, "send a GET request\n"));
    };
    if !version.starts_with("HTTP/1.") || !target.starts_with('/') {
        return Err(Page::text(400, "send a GET request\n"));
    }
    if !matches!(method, "GET" | "HEAD") {
        return Err(Page::text(405, "send a GET request\n"));
    }
    Ok(target.split('?').next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use tokio::net::TcpSocket;

    use super::*;

    /// Longer than anything takes that happens at all.
    const NEVER: Duration = Duration::from_secs(20);

    /// Connections of one peer that say nothing: more than there is room for.
    const CROWD: usize = 3 * ROOM.all;

    async fn connect(from: IpAddr, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((from, 0).into()).expect("an address of this host");
        socket.connect(to).await.expect("it listens")
    }

    async fn crowd(from: IpAddr, to: SocketAddr) -> Vec<TcpStream> {
        let mut crowd = Vec::with_capacity(CROWD);
        for _ in 0..CROWD {
            crowd.push(connect(from, to).await);
        }
        crowd
    }

    /// The status line that a connection gets for its request.
    async fn get(mut stream: TcpStream) -> io::Result<String> {
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: engine\r\n\r\n").await?;
        let mut answer = String::new();
        tokio::time::timeout(NEVER, stream.read_to_string(&mut answer)).await??;
        Ok(answer.lines().next().unwrap_or_default().to_owned())
    }

    /// Does something beside a server that gives each peer this time for its request.
    async fn beside_server<Fut: Future<Output = ()>>(
        head_limit: Duration,
        work: impl FnOnce(SocketAddr) -> Fut,
    ) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it has one");
        let serve = serve_within(listener, head_limit, async |_| Page::text(200, "ok\n"));
        let set = tokio::task::LocalSet::new();
        set.spawn_local(serve);
        set.run_until(work(address)).await;
    }

    #[tokio::test]
    async fn a_probe_is_answered_however_many_connections_say_nothing() {
        beside_server(NEVER, async |address| {
            let from = address.ip();
            let silent = crowd(from, address).await;
            for _ in 0..10 {
                let answer = get(connect(from, address).await).await;
                assert_eq!(answer.expect("an answer"), "HTTP/1.1 200 OK");
            }
            drop(silent);
        })
        .await;
    }

    #[tokio::test]
    async fn a_slow_probe_keeps_its_place_however_many_connections_another_peer_opens() {
        beside_server(NEVER, async |address| {
            let slow = connect(address.ip(), address).await;
            let silent = crowd([127, 0, 0, 2].into(), address).await;
            // A connection that is admitted behind them has seen all of them come.
            assert!(get(connect([127, 0, 0, 3].into(), address).await).await.is_ok());
            assert_eq!(get(slow).await.expect("an answer"), "HTTP/1.1 200 OK");
            drop(silent);
        })
        .await;
    }

    #[tokio::test]
    async fn who_says_nothing_is_hung_up_on() {
        beside_server(Duration::from_millis(50), async |address| {
            let mut silent = connect(address.ip(), address).await;
            silent.write_all(b"GET /").await.expect("room");
            let ended = tokio::time::timeout(NEVER, silent.read(&mut [0; 16])).await;
            assert!(matches!(ended, Ok(Ok(0) | Err(_))), "{ended:?}");
        })
        .await;
    }

    #[test]
    fn only_get_requests_have_a_path() {
        let path = |head: &[u8]| path_of(head).map_err(|page| page.status);
        assert_eq!(path(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"), Ok("/metrics".to_owned()));
        assert_eq!(path(b"POST / HTTP/1.1\r\n\r\n"), Err(405));
        for bad in
            [b"GET /".as_slice(), b"", b"GET x HTTP/1.1\r\n", b"\xff\xff \xff x\r\n", b"GET / FTP/1.1\r\n"]
        {
            assert_eq!(path(bad), Err(400));
        }
    }
}
