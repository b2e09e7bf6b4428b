//! HTTP: a live page, metrics, health, jobs, the configuration in use, a stream of events; and, with a token, requeue, reload and drain.
//!
//! One thread with one actix system. Everything is bounded: connections, bytes of a request, time of a connection,
//! listeners of the stream, jobs of a page. Answers are put together from what the manager shows and from the ledger, so
//! that reading never holds it up.

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::body::{BodySize, MessageBody};
use actix_web::dev::{Server, ServerHandle, Service as _};
use actix_web::http::{StatusCode, header};
use actix_web::rt::time::{Sleep, sleep};
use actix_web::web::{Bytes, Data, PayloadConfig};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use flume::{Receiver, Sender, TryRecvError};
use serde_json::{Value, json};

use super::commands::{Command, Which};
use super::events::Reporter;
use super::ledger::Ledger;
use super::manager::Message;
use super::record::State;
use super::view::{View, listing};

/// Reads the same calls as everybody; holds no data itself.
const PAGE: &str = include_str!("dashboard.html");
/// What it may do: run its own script and ask this service.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                           base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const MAX_BODY: usize = 64 << 10;
const MAX_CONNECTIONS: usize = 64;
const MAX_PAGE: usize = 1000;
/// Answers to somebody who should not have asked: these are logged.
const REFUSALS: [StatusCode; 3] = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::PAYLOAD_TOO_LARGE];
/// A command is answered within this, or said to be late.
const ANSWER: Duration = Duration::from_secs(20);
/// An event stream without events says so, so that a dead listener is noticed.
const STREAM_BEAT: Duration = Duration::from_secs(15);
/// How late an event may be in the stream.
const STREAM_LOOK: Duration = Duration::from_millis(100);

/// What the handlers share.
pub struct Shared {
    pub view: Arc<View>,
    pub reporter: Arc<Reporter>,
    pub ledger: Arc<Ledger>,
    pub tell: Sender<Message>,
    pub token: Option<String>,
    /// Others can reach this address: then reading needs the token too.
    pub is_open: bool,
}

pub struct Http {
    pub address: SocketAddr,
    handle: ServerHandle,
    thread: std::thread::JoinHandle<()>,
}

impl Http {
    /// Listens and answers from a thread of its own.
    pub fn start(listen: SocketAddr, shared: Shared) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen)?;
        let address = listener.local_addr()?;
        let (tell, told) = std::sync::mpsc::channel::<ServerHandle>();
        let thread = std::thread::Builder::new().name("http".to_owned()).spawn(move || {
            let system = actix_web::rt::System::new();
            let served = system.block_on(async move {
                let server = serve(listener, Data::new(shared))?;
                let _ = tell.send(server.handle());
                server.await
            });
            if let Err(error) = served {
                tracing::error!(%error, "HTTP ended");
            }
        })?;
        let handle = told.recv().map_err(|_| std::io::Error::other("HTTP did not start"))?;
        Ok(Self { address, handle, thread })
    }

    pub fn stop(self) {
        // Answers on their way get a second; event streams, which never end by themselves, are cut then.
        drop(self.handle.stop(true));
        let _ = self.thread.join();
    }
}

fn serve(listener: TcpListener, shared: Data<Shared>) -> std::io::Result<Server> {
    let make = move || {
        let counted = shared.clone();
        App::new()
            .app_data(shared.clone())
            .app_data(PayloadConfig::new(MAX_BODY))
            .wrap_fn(move |request, service| {
                let shared = counted.clone();
                let refused = refusal(&shared, request.request());
                let (path, from) = (request.path().to_owned(), request.peer_addr());
                let answer = match refused {
                    None => Ok(service.call(request)),
                    Some(response) => Err(request.into_response(response)),
                };
                async move {
                    let answer = match answer {
                        Ok(call) => call.await?,
                        Err(refused) => refused,
                    };
                    let code = answer.status();
                    if REFUSALS.contains(&code) {
                        tracing::warn!(path, ?from, code = code.as_u16(), "a request was refused");
                    }
                    shared.reporter.metrics.http_requests.with_label_values(&[code.as_str()]).inc();
                    Ok(answer)
                }
            })
            .route("/", web::get().to(page))
            .route("/metrics", web::get().to(metrics))
            .route("/healthz", web::get().to(healthz))
            .route("/readyz", web::get().to(readyz))
            .route("/api/status", web::get().to(status))
            .route("/api/config", web::get().to(config))
            .route("/api/jobs", web::get().to(jobs))
            .route("/api/jobs/{id}", web::get().to(job))
            .route("/api/events", web::get().to(events))
            .route("/api/requeue", web::post().to(requeue))
            .route("/api/reload", web::post().to(reload))
            .route("/api/drain", web::post().to(drain))
    };
    let server = HttpServer::new(make)
        .workers(1)
        .max_connections(MAX_CONNECTIONS)
        .client_request_timeout(Duration::from_secs(5))
        .client_disconnect_timeout(Duration::from_secs(1))
        .keep_alive(Duration::from_secs(15))
        .shutdown_timeout(1)
        .disable_signals()
        .listen(listener)?;
    Ok(server.run())
}

fn said(status: StatusCode, error: &str) -> HttpResponse {
    HttpResponse::build(status).json(json!({ "error": error }))
}

/// Why a request is not answered: it changes something, or others could read, without the token.
fn refusal(shared: &Shared, request: &HttpRequest) -> Option<HttpResponse> {
    let holds_no_data = matches!(request.path(), "/" | "/healthz" | "/readyz");
    let is_reading = request.method().is_safe();
    if is_reading && (!shared.is_open || holds_no_data) {
        return None;
    }
    let Some(token) = &shared.token else {
        let error = "state-changing calls need a token; say token_file = \"token\" in the service file";
        return Some(said(StatusCode::FORBIDDEN, error));
    };
    let given = request.headers().get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let given = given.and_then(|v| v.strip_prefix("Bearer ")).unwrap_or_default();
    if is_equal(given.trim().as_bytes(), token.as_bytes()) {
        return None;
    }
    let mut response =
        said(StatusCode::UNAUTHORIZED, "needs the header Authorization: Bearer TOKEN, with the token of token_file");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
    Some(response)
}

/// Takes as long for a wrong token as for the right one.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |sum, (x, y)| sum | (x ^ y)) == 0
}

async fn page() -> HttpResponse {
    HttpResponse::Ok()
        .content_type("text/html; charset=utf-8")
        .insert_header((header::CONTENT_SECURITY_POLICY, PAGE_POLICY))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .body(PAGE)
}

async fn metrics(shared: Data<Shared>) -> HttpResponse {
    match shared.reporter.metrics.render() {
        Ok(text) => HttpResponse::Ok().content_type("text/plain; version=0.0.4; charset=utf-8").body(text),
        Err(error) => said(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn healthz(shared: Data<Shared>) -> HttpResponse {
    match shared.view.is_alive() {
        true => HttpResponse::Ok().json(json!({ "healthy": true })),
        false => said(StatusCode::SERVICE_UNAVAILABLE, "the service has not been heard of for 30 s; see its log"),
    }
}

async fn readyz(shared: Data<Shared>) -> HttpResponse {
    let state = shared.view.status().get("state").and_then(Value::as_str).unwrap_or("starting").to_owned();
    match state.as_str() {
        "ready" => HttpResponse::Ok().json(json!({ "ready": true })),
        state => said(StatusCode::SERVICE_UNAVAILABLE, &format!("the service is {state}")),
    }
}

async fn status(shared: Data<Shared>) -> HttpResponse {
    HttpResponse::Ok().json(shared.view.status().as_ref())
}

async fn config(shared: Data<Shared>) -> HttpResponse {
    HttpResponse::Ok().json(shared.view.config().as_ref())
}

/// `?state=failed&watch=slc&limit=100&before=ID`: newest first.
async fn jobs(shared: Data<Shared>, request: HttpRequest) -> HttpResponse {
    let (mut state, mut watch, mut limit, mut before) = (None, None, 100, u64::MAX);
    let asked = match web::Query::<Vec<(String, String)>>::from_query(request.query_string()) {
        Ok(asked) => asked.into_inner(),
        Err(error) => return said(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    for (key, value) in asked {
        let is_good = match key.as_str() {
            "state" => {
                state = State::parse(&value);
                state.is_some()
            }
            "watch" => {
                watch = Some(value.clone());
                true
            }
            "limit" => {
                limit = value.parse().unwrap_or(0);
                (1..=MAX_PAGE).contains(&limit)
            }
            "before" => {
                before = value.parse().unwrap_or(0);
                before > 0
            }
            _ => false,
        };
        if !is_good {
            let known = format!("known are state, watch, limit (1 to {MAX_PAGE}) and before (a job's number)");
            return said(StatusCode::BAD_REQUEST, &format!("{key}={value} means nothing here; {known}"));
        }
    }
    let work = move || {
        let wanted =
            |r: &super::record::Record| state.is_none_or(|s| r.state == s) && watch.as_ref().is_none_or(|w| r.watch == *w);
        shared.ledger.newest(before, limit, wanted).map(|records| listing(&records, limit)).map_err(|e| e.to_string())
    };
    answered(web::block(work).await)
}

fn answered(result: Result<Result<Value, String>, actix_web::error::BlockingError>) -> HttpResponse {
    match result {
        Ok(Ok(value)) => HttpResponse::Ok().json(value),
        Ok(Err(error)) => said(StatusCode::INTERNAL_SERVER_ERROR, &error),
        Err(error) => said(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn job(shared: Data<Shared>, id: web::Path<String>) -> HttpResponse {
    let Ok(id) = id.parse::<u64>() else {
        return said(StatusCode::NOT_FOUND, "a job is named by its number");
    };
    let status = shared.view.status();
    let found = web::block(move || shared.ledger.by_id(id).map_err(|e| e.to_string())).await;
    match found {
        Ok(Ok(Some((_, record)))) => {
            let mut document = record.to_json();
            let running = status["running"].as_array().into_iter().flatten().find(|r| r["id"] == id);
            document["progress"] = running.cloned().unwrap_or(Value::Null);
            HttpResponse::Ok().json(document)
        }
        Ok(Ok(None)) => said(StatusCode::NOT_FOUND, &format!("the ledger has no job {id}")),
        Ok(Err(error)) => said(StatusCode::INTERNAL_SERVER_ERROR, &error),
        Err(error) => said(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn events(shared: Data<Shared>, request: HttpRequest) -> HttpResponse {
    let after = request.headers().get("last-event-id").and_then(|v| v.to_str().ok()?.parse().ok());
    match shared.reporter.listen(after) {
        Some(heard) => HttpResponse::Ok()
            .insert_header((header::CONTENT_TYPE, "text/event-stream"))
            .insert_header((header::CACHE_CONTROL, "no-store"))
            .body(EventStream { heard, timer: Box::pin(sleep(STREAM_LOOK)), quiet: Duration::ZERO }),
        None => said(StatusCode::SERVICE_UNAVAILABLE, "too many listeners; close one"),
    }
}

/// Events as they come, and a comment now and then.
struct EventStream {
    heard: Receiver<String>,
    timer: Pin<Box<Sleep>>,
    quiet: Duration,
}

impl MessageBody for EventStream {
    type Error = std::convert::Infallible;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        loop {
            match self.heard.try_recv() {
                Ok(text) => {
                    self.quiet = Duration::ZERO;
                    return Poll::Ready(Some(Ok(Bytes::from(text))));
                }
                Err(TryRecvError::Disconnected) => return Poll::Ready(None),
                Err(TryRecvError::Empty) => {}
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.timer = Box::pin(sleep(STREAM_LOOK));
            self.quiet += STREAM_LOOK;
            if self.quiet >= STREAM_BEAT {
                self.quiet = Duration::ZERO;
                return Poll::Ready(Some(Ok(Bytes::from_static(b": alive\n\n"))));
            }
        }
    }
}

async fn commanded(shared: Data<Shared>, command: Command) -> HttpResponse {
    let work = move || {
        let (answer, answered) = flume::bounded(1);
        shared.tell.send(Message::Command(command, answer)).map_err(|_| "the service is ending".to_owned())?;
        answered.recv_timeout(ANSWER).map_err(|_| format!("no answer within {ANSWER:?}; it may still happen"))
    };
    answered(web::block(work).await)
}

/// `{"name": "scene.zarr"}`, `{"all": true}` or `{"changed": true}`.
async fn requeue(shared: Data<Shared>, body: Bytes) -> HttpResponse {
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    let which = match (asked.get("name").and_then(Value::as_str), &asked["all"], &asked["changed"]) {
        (Some(name), _, _) => Which::Named(name.to_owned()),
        (None, Value::Bool(true), _) => Which::All,
        (None, _, Value::Bool(true)) => Which::Changed,
        _ => return said(StatusCode::BAD_REQUEST, "say {\"name\": \"scene.zarr\"}, {\"all\": true} or {\"changed\": true}"),
    };
    commanded(shared, Command::Requeue(which)).await
}

async fn reload(shared: Data<Shared>) -> HttpResponse {
    commanded(shared, Command::Reload).await
}

async fn drain(shared: Data<Shared>) -> HttpResponse {
    commanded(shared, Command::Drain).await
}
