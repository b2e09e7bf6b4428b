//! Requests as they go over the wire: sent, tried again with growing, jittered pauses where that may help (5xx, 429, lost
//! connections, silence), counted. Answers that are no objects are cut at a size; redirects never lead to another scheme,
//! and for signed requests nowhere.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::{BodyExt, Limited};
use object_store::client::{
    ClientConfigKey, ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use reqwest::StatusCode;
use reqwest::redirect::Policy;

use super::Traffic;
use super::fault::{Fault, innermost};
use super::place::Scheme;

/// A request is tried again so many times; with the pauses below that takes about 20 s.
const AGAIN: usize = 8;
/// The same where there is nobody to talk to: most often the name is wrong.
const AGAIN_UNREACHABLE: usize = 3;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Longest wait for a connection, and for the next bytes of an answer.
const CONNECT: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_secs(30);

const MOST_REDIRECTS: usize = 5;

/// A page of a listing names a thousand keys of at most 1 KiB.
const MOST_LISTING_BYTES: usize = 16 << 20;
const MOST_MESSAGE_BYTES: usize = 64 << 10;

/// The pause after so many attempts: doubled each time, and between half and all of that, so that those who failed together
/// do not come back together.
pub(super) fn pause(attempts: usize) -> Duration {
    let most = FIRST_PAUSE.saturating_mul(1 << attempts.min(16)).min(LONGEST_PAUSE);
    let random = RandomState::new().build_hasher().finish() >> 11;
    most.mul_f64(0.5 + 0.5 * random as f64 / (1u64 << 53) as f64)
}

/// Makes the clients of one store.
#[derive(Debug)]
pub(super) struct Wire {
    pub scheme: Scheme,
    pub traffic: Arc<Traffic>,
}

impl HttpConnector for Wire {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allows_http = options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|value| is_yes(&value));
        let follows = matches!(self.scheme, Scheme::Http | Scheme::Https);
        let client = shared(allows_http, follows);
        let client = client.map_err(|error| object_store::Error::Generic { store: "HTTP", source: error.into() })?;
        Ok(HttpClient::new(Caller { client, traffic: self.traffic.clone() }))
    }
}

/// The client of this kind, with its connections: all stores have it together.
fn shared(allows_http: bool, follows: bool) -> reqwest::Result<reqwest::Client> {
    static CLIENTS: Mutex<BTreeMap<(bool, bool), reqwest::Client>> = Mutex::new(BTreeMap::new());
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(client) = clients.get(&(allows_http, follows)) {
        return Ok(client.clone());
    }
    // An error says that there is one already, which will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .user_agent(concat!("halostream/", env!("CARGO_PKG_VERSION")))
        .https_only(!allows_http)
        .redirect(if follows { same_scheme() } else { Policy::none() })
        .connect_timeout(CONNECT)
        .read_timeout(SILENCE)
        .build()?;
    clients.insert((allows_http, follows), client.clone());
    Ok(client)
}

/// What the client library takes for a yes in the environment.
pub(super) fn is_yes(value: &str) -> bool {
    ["1", "true", "on", "yes", "y"].contains(&value.to_ascii_lowercase().as_str())
}

fn same_scheme() -> Policy {
    Policy::custom(|attempt| {
        let first = attempt.previous().first().map(|url| url.scheme().to_owned());
        if first.is_some_and(|scheme| scheme != attempt.url().scheme()) {
            attempt.error(Fault::new("a redirect leads to another scheme"))
        } else if attempt.previous().len() > MOST_REDIRECTS {
            attempt.error(Fault::new("too many redirects"))
        } else {
            attempt.follow()
        }
    })
}

#[derive(Debug)]
struct Caller {
    client: reqwest::Client,
    traffic: Arc<Traffic>,
}

#[async_trait]
impl HttpService for Caller {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let mut attempts = 1;
        loop {
            let fault = match self.send(request.clone()).await {
                Ok(response) => return Ok(response),
                Err(fault) => fault,
            };
            let most = if fault.is_unreachable { AGAIN_UNREACHABLE } else { AGAIN };
            if !fault.may_pass || attempts > most {
                // Of a kind that nobody else tries again.
                return Err(HttpError::new(HttpErrorKind::Unknown, fault.after(attempts)));
            }
            let pause = pause(attempts - 1);
            tracing::debug!(host = request.uri().host(), %fault, attempts, pause_s = pause.as_secs_f64(), "request failed");
            tokio::time::sleep(pause).await;
            self.traffic.again();
            attempts += 1;
        }
    }
}

impl Caller {
    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, Fault> {
        let (parts, body) = request.into_parts();
        let is_listing = parts.uri.query().is_some_and(|query| query.contains("list-type="));
        let is_object = parts.method == reqwest::Method::GET && !is_listing;
        let url = parts.uri.to_string().parse().map_err(|_| Fault::new("the key makes no URL"))?;
        let mut sent = reqwest::Request::new(parts.method, url);
        *sent.headers_mut() = parts.headers;
        if body.content_length() > 0 {
            *sent.body_mut() = Some(reqwest::Body::wrap(body));
        }
        self.traffic.sent();
        let response: http::Response<reqwest::Body> = self.client.execute(sent).await.map_err(lost)?.into();
        let (parts, body) = response.into_parts();
        let body = HttpResponseBody::new(body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, lost(error))));
        match parts.status {
            status if status.is_success() && is_object => Ok(HttpResponse::from_parts(parts, body)),
            status if status.is_success() => Ok(HttpResponse::from_parts(parts, capped(body, MOST_LISTING_BYTES))),
            // The client library knows what these mean; nobody reads what else the server says of them.
            StatusCode::NOT_FOUND | StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED | StatusCode::NOT_MODIFIED => {
                Ok(HttpResponse::from_parts(parts, Vec::new().into()))
            }
            status => {
                let region = parts.headers.get("x-amz-bucket-region").and_then(|value| value.to_str().ok()).map(plain);
                let message = capped(body, MOST_MESSAGE_BYTES).bytes().await.unwrap_or_default();
                Err(refused(status, &String::from_utf8_lossy(&message), region))
            }
        }
    }
}

fn capped(body: HttpResponseBody, most: usize) -> HttpResponseBody {
    let too_long = |error| HttpError::new(HttpErrorKind::Decode, Fault::new(format!("the answer is too long: {error}")));
    HttpResponseBody::new(Limited::new(body, most).map_err(too_long))
}

/// A request without an answer, or without all of it.
fn lost(error: reqwest::Error) -> Fault {
    // A redirect that is not followed, a scheme that is not allowed.
    if error.is_redirect() || error.is_builder() {
        let fault = Fault::new(innermost(&error));
        return match error.is_builder() {
            true => fault.advised("; set AWS_ALLOW_HTTP=true for an endpoint without https"),
            false => fault,
        };
    }
    let is_unreachable = error.is_connect();
    let what = match (error.is_timeout(), is_unreachable) {
        (_, true) => "no connection",
        (true, _) => "the server is silent",
        _ => "the connection was lost",
    };
    // The error itself names the URL; what it comes from does not.
    let reason = match error.source() {
        Some(source) => format!("{what}: {}", innermost(source)),
        None => what.to_owned(),
    };
    Fault { is_unreachable, ..Fault::passing(reason) }
}

/// What the server says instead of an object.
fn refused(status: StatusCode, message: &str, region: Option<String>) -> Fault {
    let code = message.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map(|(code, _)| plain(code));
    let mut reason = format!("the server answers {status}");
    if let Some(code) = code {
        reason += &format!(", {code}");
    }
    let mut fault = Fault::new(reason);
    if status.is_redirection() {
        fault = fault.of_region(region);
    }
    fault.may_pass = match status {
        StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED => false,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => true,
        _ => status.is_server_error(),
    };
    fault.status = Some(status.as_u16());
    fault
}

/// Letters, digits and hyphens, few of them: servers may answer anything.
fn plain(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_differ() {
        for (attempts, most) in [(0, 100), (1, 200), (5, 3200), (7, 10_000), (60, 10_000)] {
            let most = Duration::from_millis(most);
            let pauses: Vec<Duration> = (0..20).map(|_| pause(attempts)).collect();
            assert!(pauses.iter().all(|p| *p >= most / 2 && *p <= most), "{pauses:?}");
            assert!(pauses.iter().any(|p| *p != pauses[0]));
        }
    }

    #[test]
    fn answers_are_a_table() {
        for (status, may_pass) in [(500, true), (503, true), (429, true), (400, false), (403, false), (416, false), (501, false)]
        {
            let status = StatusCode::from_u16(status).unwrap();
            let body = "<Error><Code>Slow\u{1b}[2JDown</Code><AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>";
            let fault = refused(status, body, None);
            assert_eq!(fault.may_pass, may_pass, "{status}");
            assert!(fault.to_string().ends_with("Slow2JDown"), "{fault}");
        }
        let moved = refused(StatusCode::MOVED_PERMANENTLY, "", Some("eu-west-1".to_owned()));
        assert!(moved.to_string().contains("the bucket is in region eu-west-1") && moved.advice.contains("AWS_REGION"));
    }
}
