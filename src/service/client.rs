//! Asks a running service on this machine: a few lines of HTTP/1.1, enough for our own server.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(30);
const MAX_ANSWER: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the service at {address} does not answer: {error}")]
    Io { address: SocketAddr, error: io::Error },
    #[error("the service at {address} answers what is no HTTP of ours")]
    Strange { address: SocketAddr },
    /// With what the service says.
    #[error("{message}")]
    Refused { code: u16, message: String },
}

/// Where a service that listens on every address is reached from here.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// `GET` without a body, `POST` with one.
pub fn ask(address: SocketAddr, path: &str, body: Option<&Value>, token: Option<&str>) -> Result<Value, ClientError> {
    let address = reachable(address);
    let wrong = |error| ClientError::Io { address, error };
    let mut stream = TcpStream::connect_timeout(&address, CONNECT).map_err(wrong)?;
    stream.set_read_timeout(Some(ANSWER)).map_err(wrong)?;
    stream.set_write_timeout(Some(CONNECT)).map_err(wrong)?;
    let method = if body.is_some() { "POST" } else { "GET" };
    let text = body.map(Value::to_string).unwrap_or_default();
    let token = token.map(|t| format!("Authorization: Bearer {t}\r\n")).unwrap_or_default();
    // HTTP/1.0: the answer comes in one piece and ends with the connection.
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\n{token}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    );
    stream.write_all(request.as_bytes()).map_err(wrong)?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).map_err(wrong)?;
    let strange = || ClientError::Strange { address };
    let at = answer.windows(4).position(|w| w == b"\r\n\r\n").ok_or_else(strange)?;
    let head = String::from_utf8_lossy(&answer[..at]);
    let code: u16 = head.split(' ').nth(1).and_then(|c| c.parse().ok()).ok_or_else(strange)?;
    let value: Value = serde_json::from_slice(&answer[at + 4..]).unwrap_or_default();
    if code == 200 {
        return Ok(value);
    }
    let said = value["error"].as_str().map_or_else(|| format!("the service answers {code}"), str::to_owned);
    Err(ClientError::Refused { code, message: said })
}
