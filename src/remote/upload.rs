//! Objects that are written: in one request where they are small, in parts where they are not. An object appears under its
//! key whole, with the last request.

use std::fmt;
use std::io::{self, Write as _};

use bytes::Bytes;
use object_store::path::Path;
use object_store::{MultipartUpload, PutMultipartOptions, PutOptions, PutPayload};

use super::fault::of_store;
use super::object::Client;
use super::wait;

/// Bytes of a part; stores want 5 MiB and more, and at most 10,000 parts.
const PART: usize = 8 << 20;

/// Most that an object on its way holds beside what is written: a part, or a small object, as the client wants it.
pub fn held_bytes(object: u64) -> u64 {
    object.min(PART as u64) + super::CONNECTION_BYTES
}

/// An object being written; dropped without a commit it leaves nothing.
pub struct Upload {
    client: Client,
    location: Path,
    buffer: Vec<u8>,
    parts: Option<Box<dyn MultipartUpload>>,
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upload({})", self.location)
    }
}

impl Upload {
    pub(super) fn new(client: &Client, location: Path) -> Self {
        Self { client: client.clone(), location, buffer: Vec::new(), parts: None }
    }

    pub fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            // A part goes once more is known to follow, so that small objects are one request.
            if self.buffer.len() == PART {
                self.put_part()?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(PART - self.buffer.len()));
            self.buffer.write_all(now)?;
            bytes = later;
        }
        Ok(())
    }

    /// Gives the object its key.
    pub fn commit(mut self) -> io::Result<()> {
        if self.parts.is_some() {
            self.put_part()?;
        }
        let payload = PutPayload::from(Bytes::from(std::mem::take(&mut self.buffer)));
        let (client, location) = (&self.client, &self.location);
        let parts = self.parts.take();
        wait(async move {
            let done = match parts {
                Some(mut parts) => parts.complete().await,
                None => client.store.put_opts(location, payload, PutOptions::default()).await,
            };
            done.map(drop).map_err(|error| of_store(error, client.scheme))
        })
    }

    fn put_part(&mut self) -> io::Result<()> {
        let (client, location) = (&self.client, &self.location);
        let failed = |error| of_store(error, client.scheme);
        if self.parts.is_none() {
            let begun = client.store.put_multipart_opts(location, PutMultipartOptions::default());
            self.parts = Some(wait(async { begun.await.map_err(failed) })?);
        }
        let Some(parts) = &mut self.parts else { return Ok(()) };
        let payload = PutPayload::from(Bytes::from(std::mem::take(&mut self.buffer)));
        let put = parts.put_part(payload);
        wait(async { put.await.map_err(failed) })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(mut parts) = self.parts.take() {
            // Nothing to be told: the error that led here is on its way, and stores end uploads that nobody goes on with.
            let _ = wait(async { parts.abort().await.map_err(|error| of_store(error, self.client.scheme)) });
        }
    }
}
