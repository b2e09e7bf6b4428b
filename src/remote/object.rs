//! One object of a store. Opening it sends the request for what is read first, so a chunk costs one round trip and its
//! size is known before its bytes come; they go straight to where they are read to, and never more than asked for.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore};

use super::fault::{Fault, of_store};
use super::place::Scheme;
use super::wire::pause;
use super::{Traffic, wait};

/// Answers that break off are asked for again so many times, from where they broke off.
const AGAIN: usize = 4;

/// What of an object is read first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Whole,
    Bytes(Range<u64>),
    /// So many bytes at its end.
    Last(u64),
}

/// The stores of one place, as everybody who reads from them needs them.
#[derive(Clone)]
pub(super) struct Client {
    pub store: Arc<dyn ObjectStore>,
    pub scheme: Scheme,
    pub traffic: Arc<Traffic>,
}

/// An open object.
pub struct Object {
    client: Client,
    location: Path,
    size: u64,
    /// Later requests want the same version.
    e_tag: Option<String>,
    /// The answer to the request that opened it, until it is read.
    body: Mutex<Option<Body>>,
}

/// Bytes that are on their way.
struct Body {
    range: Range<u64>,
    stream: BoxStream<'static, object_store::Result<Bytes>>,
}

impl fmt::Debug for Object {
    /// Clients know credentials: they are not shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({}, {} bytes)", self.location, self.size)
    }
}

impl Object {
    /// Asks for an object; `None` when there is none.
    pub(super) fn open(client: &Client, location: Path, part: Part) -> io::Result<Option<Self>> {
        let range = match part {
            Part::Whole => None,
            Part::Bytes(range) if range.is_empty() => None,
            Part::Bytes(range) => Some(GetRange::Bounded(range)),
            Part::Last(bytes) => Some(GetRange::Suffix(bytes)),
        };
        let options = GetOptions { range, ..GetOptions::default() };
        let opened = wait(async { client.store.get_opts(&location, options).await.map_err(|e| of_store(e, client.scheme)) });
        let result = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let (size, e_tag, range) = (result.meta.size, result.meta.e_tag.clone(), result.range.clone());
        let body = Mutex::new(Some(Body { range, stream: result.into_stream() }));
        Ok(Some(Self { client: client.clone(), location, size, e_tag, body }))
    }

    /// Bytes of the whole object.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Fills `out` from an offset on. What opening asked for is read once without another request.
    pub fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        let stop = offset.checked_add(out.len() as u64).filter(|stop| *stop <= self.size);
        let stop = stop.ok_or(io::ErrorKind::UnexpectedEof)?;
        if out.is_empty() {
            return Ok(());
        }
        let ready = self.body.lock().unwrap_or_else(PoisonError::into_inner).take();
        let ready = ready.filter(|body| body.range.start == offset && body.range.end >= stop);
        wait(self.fill(out, offset, ready))
    }

    async fn fill(&self, out: &mut [u8], offset: u64, mut ready: Option<Body>) -> io::Result<()> {
        let mut filled = 0;
        for attempt in 0.. {
            let body = match ready.take() {
                Some(body) => body,
                None => self.request(offset + filled as u64..offset + out.len() as u64).await?,
            };
            match copy(body.stream, out, &mut filled).await {
                Ok(()) => break,
                Err(fault) if attempt < AGAIN => {
                    tracing::debug!(object = %self.location, %fault, attempt, "answer broken off");
                    tokio::time::sleep(pause(attempt)).await;
                    self.client.traffic.again();
                }
                Err(fault) => return Err(fault.after(attempt + 1).into()),
            }
        }
        Ok(())
    }

    async fn request(&self, range: Range<u64>) -> io::Result<Body> {
        // A weak tag does not promise the same bytes, so servers refuse to compare it.
        let if_match = self.e_tag.clone().filter(|tag| !tag.starts_with("W/"));
        let options = GetOptions { range: Some(GetRange::Bounded(range)), if_match, ..GetOptions::default() };
        let result = self.client.store.get_opts(&self.location, options).await;
        let result = result.map_err(|error| of_store(error, self.client.scheme))?;
        if result.meta.size != self.size {
            let fault = Fault::passing("the object was changed while it was read").advised("; run the same command again");
            return Err(fault.into());
        }
        Ok(Body { range: result.range.clone(), stream: result.into_stream() })
    }
}

/// Copies a body behind what is filled; a body that ends before `out` is full is a fault that may pass.
async fn copy(
    mut stream: BoxStream<'static, object_store::Result<Bytes>>,
    out: &mut [u8],
    filled: &mut usize,
) -> Result<(), Fault> {
    while *filled < out.len() {
        let bytes = match stream.next().await {
            Some(Ok(bytes)) => bytes,
            Some(Err(error)) => {
                let reason = super::fault::innermost(&error);
                return Err(Fault::passing(format!("the answer broke off after {filled} of {} bytes: {reason}", out.len())));
            }
            None => return Err(Fault::passing(format!("the answer ended after {filled} of {} bytes", out.len()))),
        };
        let n = bytes.len().min(out.len() - *filled);
        out[*filled..*filled + n].copy_from_slice(&bytes[..n]);
        *filled += n;
    }
    Ok(())
}
