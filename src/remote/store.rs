//! One place of an object store as a store of keys. Credentials and endpoints come from the usual variables of the
//! environment; they are shown nowhere.

use std::fmt;
use std::io;
use std::sync::Arc;

use futures_util::StreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::path::Path;
use object_store::{ClientOptions, GetOptions, ObjectMeta, ObjectStore, RetryConfig};

use super::fault::{Fault, of_store};
use super::object::{Client, Object, Part};
use super::place::{Place, Scheme};
use super::upload::Upload;
use super::wire::{Wire, is_yes};
use super::{Requests, Traffic, wait};

/// A group with more entries than this is not listed.
const MAX_ENTRIES: usize = 100_000;

/// A place in an object store. Errors carry the reason; the caller adds [`RemoteStore::place`].
pub struct RemoteStore {
    place: Place,
    client: Client,
    /// What keys begin with in the store.
    base: String,
    /// Where keys can be listed.
    lists: Option<Arc<dyn PaginatedListStore>>,
}

impl fmt::Debug for RemoteStore {
    /// Clients know credentials: they are not shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteStore({})", self.place)
    }
}

/// Pauses and attempts are ours ([`super::wire`]).
fn once() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

impl RemoteStore {
    /// A store at a URL. Nothing is asked of it yet.
    pub fn open(url: &str) -> io::Result<Self> {
        let place = Place::parse(url).map_err(|reason| io::Error::new(io::ErrorKind::InvalidInput, reason))?;
        let traffic = Arc::new(Traffic::default());
        let wire = Wire { scheme: place.scheme, traffic: traffic.clone() };
        let failed = |error| of_store(error, place.scheme);
        let (store, lists): (Arc<dyn ObjectStore>, Option<Arc<dyn PaginatedListStore>>) = match place.scheme {
            Scheme::S3 => {
                check_endpoint()?;
                let builder = AmazonS3Builder::from_env().with_bucket_name(&place.host).with_retry(once());
                // Other servers than Amazon's do not all know how to delete many at once.
                let builder = builder.with_config(AmazonS3ConfigKey::DisableBulkDelete, "true");
                let store = Arc::new(builder.with_http_connector(wire).build().map_err(failed)?);
                (store.clone(), Some(store))
            }
            Scheme::Gs => {
                let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(&place.host).with_retry(once());
                let store = Arc::new(builder.with_http_connector(wire).build().map_err(failed)?);
                (store.clone(), Some(store))
            }
            Scheme::Http | Scheme::Https => {
                let options = ClientOptions::new().with_allow_http(place.scheme == Scheme::Http);
                let builder = HttpBuilder::new().with_url(place.to_string()).with_client_options(options).with_retry(once());
                (Arc::new(builder.with_http_connector(wire).build().map_err(failed)?), None)
            }
        };
        // The URL of a server holds the path already.
        let is_prefixed = lists.is_some() && !place.key.is_empty();
        let base = if is_prefixed { format!("{}/", place.key) } else { String::new() };
        Ok(Self { client: Client { store, scheme: place.scheme, traffic }, place, base, lists })
    }

    /// The URL of a key, for messages; of the store itself for `""`.
    pub fn place(&self, key: &str) -> String {
        if key.is_empty() { self.place.to_string() } else { format!("{}/{key}", self.place) }
    }

    pub fn requests(&self) -> Requests {
        self.client.traffic.requests()
    }

    /// The object's path in the store. Keys come from checked metadata and from users: none leads elsewhere.
    fn location(&self, key: &str) -> io::Result<Path> {
        crate::zarr::store::check(key)?;
        Path::parse(format!("{}{key}", self.base)).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))
    }

    /// Asks for an object, with what of it is read first; `None` when there is none.
    pub fn object(&self, key: &str, part: Part) -> io::Result<Option<Object>> {
        Object::open(&self.client, self.location(key)?, part)
    }

    /// A whole object of at most `cap` bytes.
    pub fn get(&self, key: &str, cap: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(object) = self.object(key, Part::Whole)? else { return Ok(None) };
        let size = object.size();
        if size > cap {
            let reason = format!("the object holds {size} bytes, at most {cap} are expected");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
        }
        let mut bytes = vec![0; size as usize];
        object.read_exact_at(&mut bytes, 0)?;
        Ok(Some(bytes))
    }

    /// Writes an object.
    pub fn put(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        let mut upload = self.begin(key)?;
        upload.write_all(bytes)?;
        upload.commit()
    }

    /// Starts an object that is written in several pieces and appears under its key on [`Upload::commit`].
    pub fn begin(&self, key: &str) -> io::Result<Upload> {
        Ok(Upload::new(&self.client, self.location(key)?))
    }

    /// Removes objects, several at once; those that are not there are fine.
    pub fn remove(&self, keys: &[String]) -> io::Result<()> {
        let locations: Vec<Path> = keys.iter().map(|key| self.location(key)).collect::<io::Result<_>>()?;
        let locations = futures_util::stream::iter(locations.into_iter().map(Ok)).boxed();
        wait(async {
            let mut removed = self.client.store.delete_stream(locations);
            while let Some(done) = removed.next().await {
                match done.map_err(|error| of_store(error, self.client.scheme)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        })
    }

    /// What tells versions of an object apart; `None` when there is none.
    pub fn version(&self, key: &str) -> io::Result<Option<String>> {
        let location = self.location(key)?;
        let options = GetOptions { head: true, ..GetOptions::default() };
        let found = wait(async {
            self.client.store.get_opts(&location, options).await.map_err(|error| of_store(error, self.client.scheme))
        });
        match found {
            Ok(found) => Ok(Some(version_of(&found.meta))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Calls `each` with key, size and version of every object below a key, a thousand a request, until it says no. False
    /// where the store can't list, or does not let us.
    pub fn list(&self, below: &str, mut each: impl FnMut(&str, u64, &str) -> bool) -> io::Result<bool> {
        let mut token = None;
        loop {
            let Some(page) = self.page(below, None, token)? else { return Ok(false) };
            for object in &page.result.objects {
                let key = object.location.as_ref();
                if !each(key.strip_prefix(self.base.as_str()).unwrap_or(key), object.size, &version_of(object)) {
                    return Ok(true);
                }
            }
            token = page.page_token;
            if token.is_none() {
                return Ok(true);
            }
        }
    }

    /// Names of what looks like folders right below a key; `None` where the store can't list, or does not let us.
    pub fn folders(&self, below: &str) -> io::Result<Option<Vec<String>>> {
        let (mut names, mut token) = (Vec::new(), None);
        loop {
            let Some(page) = self.page(below, Some("/"), token)? else { return Ok(None) };
            names.extend(page.result.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned)));
            token = page.page_token;
            if token.is_none() {
                names.sort();
                return Ok(Some(names));
            }
            if names.len() > MAX_ENTRIES {
                return Err(Fault::new(format!("the group has more than {MAX_ENTRIES} entries")).into());
            }
        }
    }

    fn page(
        &self,
        below: &str,
        delimiter: Option<&'static str>,
        page_token: Option<String>,
    ) -> io::Result<Option<PaginatedListResult>> {
        let Some(lists) = &self.lists else { return Ok(None) };
        let prefix = match below {
            "" => self.base.clone(),
            below => format!("{}/", self.location(below)?),
        };
        let options = PaginatedListOptions { delimiter: delimiter.map(Into::into), page_token, ..Default::default() };
        let prefix = Some(prefix.as_str()).filter(|prefix| !prefix.is_empty());
        let page =
            wait(async { lists.list_paginated(prefix, options).await.map_err(|error| of_store(error, self.client.scheme)) });
        match page {
            Ok(page) => Ok(Some(page)),
            // Objects may be open to all, and lists of them to nobody.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Size, tag and time of an object.
fn version_of(object: &ObjectMeta) -> String {
    let tag = object.e_tag.as_deref().unwrap_or_default();
    format!("{} {tag} {}", object.size, object.last_modified.timestamp_millis())
}

/// Without https an endpoint is used only where that is wanted: the client would say no in other words.
fn check_endpoint() -> io::Result<()> {
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].into_iter().find(|n| !of(n).is_empty());
    match endpoint {
        Some(name) if of(name).starts_with("http://") && !is_yes(&of("AWS_ALLOW_HTTP")) => {
            let reason = format!("{name} is an endpoint without https");
            Err(Fault::new(reason).advised("; set AWS_ALLOW_HTTP=true if that is meant").into())
        }
        _ => Ok(()),
    }
}
