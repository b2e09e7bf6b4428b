//! An HTTP/1.1 server over a folder, in this process: ranges, ETags, and of S3 listings, puts, deletes, uploads in parts;
//! and faults on purpose.
//! `/bucket/key` is the file `bucket/key`. It believes any signature, but can want one.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, UNIX_EPOCH};

#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// Decoded, without the query.
    pub path: String,
    pub query: HashMap<String, String>,
    /// By names in lower case.
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
    /// How many requests of this method for this path came before.
    pub earlier: usize,
}

impl Request {
    pub fn is_for(&self, method: &str, end: &str) -> bool {
        self.method == method && self.path.ends_with(end)
    }

    pub fn range(&self) -> Option<&str> {
        self.headers.get("range").map(String::as_str)
    }
}

/// What becomes of a request.
#[derive(Clone, Debug)]
pub enum Fate {
    Served,
    Status(u16, &'static str),
    /// So many bytes of the body, then the connection is closed.
    Cut(usize),
    /// A body without an end, with or without the length that is claimed.
    Endless(Option<u64>),
    /// To another URL.
    Redirect(String),
    /// Nothing, until the server goes.
    Held,
    /// Served once so many requests wait here at once, or after a while.
    Together(usize),
    /// The whole object, as if no range were asked for.
    WithoutRanges,
}

type Faults = dyn Fn(&Request) -> Fate + Send + Sync;

struct Shared {
    root: PathBuf,
    faults: Box<Faults>,
    is_over: AtomicBool,
    log: Mutex<Vec<Request>>,
    waiting: Mutex<usize>,
    met: Condvar,
    most_waiting: AtomicUsize,
    /// Bytes of bodies sent.
    sent: AtomicUsize,
    /// Parts of uploads by upload and number.
    parts: Mutex<BTreeMap<(String, usize), Vec<u8>>>,
}

pub struct Server {
    shared: Arc<Shared>,
    pub address: String,
}

impl Server {
    pub fn new(root: &Path) -> Self {
        Self::with(root, |_| Fate::Served)
    }

    pub fn with(root: &Path, faults: impl Fn(&Request) -> Fate + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let shared = Arc::new(Shared {
            root: root.to_path_buf(),
            faults: Box::new(faults),
            is_over: AtomicBool::new(false),
            log: Mutex::default(),
            waiting: Mutex::default(),
            met: Condvar::new(),
            most_waiting: AtomicUsize::new(0),
            sent: AtomicUsize::new(0),
            parts: Mutex::default(),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.is_over.load(Ordering::SeqCst) {
                    break;
                }
                let shared = accepting.clone();
                std::thread::spawn(move || stream.map(|stream| serve(&shared, stream)));
            }
        });
        Self { shared, address }
    }

    /// `http://host/PATH`
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    pub fn log(&self) -> Vec<Request> {
        self.shared.log.lock().expect("no panic").clone()
    }

    pub fn count(&self, is_meant: impl Fn(&Request) -> bool) -> usize {
        self.log().iter().filter(|request| is_meant(request)).count()
    }

    /// Most requests that [`Fate::Together`] held at once.
    pub fn most_waiting(&self) -> usize {
        self.shared.most_waiting.load(Ordering::SeqCst)
    }

    pub fn sent(&self) -> usize {
        self.shared.sent.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(&self.address);
    }
}

fn serve(shared: &Shared, stream: TcpStream) {
    let Ok(copy) = stream.try_clone() else { return };
    // A head that waits for the acknowledgement of what was sent before it takes 40 ms.
    let _ = stream.set_nodelay(true);
    let (mut reader, mut writer) = (BufReader::new(copy), stream);
    while let Some(request) = read(shared, &mut reader) {
        if answer(shared, &request, &mut writer).is_none() {
            break;
        }
    }
    let _ = writer.shutdown(std::net::Shutdown::Both);
}

fn read(shared: &Shared, reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let query = pairs.map(|(key, value)| (key.to_owned(), decoded(value))).collect();
    let path = decoded(path);
    let length = headers.get("content-length").and_then(|text: &String| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut log = shared.log.lock().expect("no panic");
    let earlier = log.iter().filter(|r| r.method == method && r.path == path).count();
    let request = Request { method, path, query, headers, body, earlier };
    // Bodies are not kept.
    log.push(Request { body: Vec::new(), ..request.clone() });
    Some(request)
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex =
            tail.get(..2).filter(|_| *first == b'%').and_then(|h| u8::from_str_radix(std::str::from_utf8(h).ok()?, 16).ok());
        bytes.push(hex.unwrap_or(*first));
        rest = if hex.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8(bytes).expect("UTF-8")
}

/// `None` when the connection is to be closed.
fn answer(shared: &Shared, request: &Request, writer: &mut TcpStream) -> Option<()> {
    let fate = (shared.faults)(request);
    match fate {
        Fate::Status(status, body) => return respond(shared, writer, request, status, "", body.as_bytes()),
        Fate::Redirect(url) => return respond(shared, writer, request, 302, &format!("Location: {url}\r\n"), b""),
        Fate::Together(many) => gather(shared, many),
        Fate::Held => {
            while !shared.is_over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            return None;
        }
        Fate::Endless(length) => {
            let length = length.map_or("Transfer-Encoding: chunked".to_owned(), |n| format!("Content-Length: {n}"));
            write!(writer, "HTTP/1.1 200 OK\r\n{length}\r\nETag: \"endless\"\r\n\r\n").ok()?;
            let body = [b'x'; 4096];
            while !shared.is_over.load(Ordering::SeqCst) {
                if length.starts_with("Transfer") {
                    write!(writer, "1000\r\n").ok()?;
                }
                writer.write_all(&body).ok()?;
                if length.starts_with("Transfer") {
                    write!(writer, "\r\n").ok()?;
                }
                shared.sent.fetch_add(body.len(), Ordering::SeqCst);
            }
            return None;
        }
        _ => {}
    }
    if request.query.contains_key("list-type") {
        let body = listing(shared, request);
        return respond(shared, writer, request, 200, "Content-Type: application/xml\r\n", body.as_bytes());
    }
    let file = shared.root.join(request.path.trim_start_matches('/'));
    if matches!(request.method.as_str(), "PUT" | "POST" | "DELETE") {
        return change(shared, request, &file, writer);
    }
    let Ok(bytes) = std::fs::read(&file) else {
        return respond(shared, writer, request, 404, "", b"<Error><Code>NoSuchKey</Code></Error>");
    };
    let tag = format!("\"{:08x}-{}\"", crc32c::crc32c(&bytes), bytes.len());
    if request.headers.get("if-match").is_some_and(|wanted| *wanted != tag) {
        return respond(shared, writer, request, 412, "", b"");
    }
    let total = bytes.len();
    let ranged = request.range().filter(|_| !matches!(fate, Fate::WithoutRanges)).map(|range| range_of(range, total));
    let (status, range) = match ranged {
        None => (200, 0..total),
        Some(Some(range)) => (206, range),
        Some(None) => return respond(shared, writer, request, 416, &format!("Content-Range: bytes */{total}\r\n"), b""),
    };
    let mut headers = format!("ETag: {tag}\r\nLast-Modified: Sat, 01 Jan 2022 00:00:00 GMT\r\n");
    if status == 206 {
        headers += &format!("Content-Range: bytes {}-{}/{total}\r\n", range.start, range.end - 1);
    }
    let body = &bytes[range];
    if let Fate::Cut(at) = fate
        && at < body.len()
    {
        write!(writer, "HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\n\r\n", body.len()).ok()?;
        writer.write_all(&body[..at]).ok()?;
        return None;
    }
    respond(shared, writer, request, status, &headers, body)
}

/// Puts, deletes and uploads in parts.
fn change(shared: &Shared, request: &Request, file: &Path, writer: &mut TcpStream) -> Option<()> {
    let upload = request.query.get("uploadId").cloned();
    let number = request.query.get("partNumber").and_then(|text| text.parse().ok());
    let mut parts = shared.parts.lock().expect("no panic");
    let body = match (request.method.as_str(), upload, number) {
        ("POST", None, _) if request.query.contains_key("uploads") => {
            let id = format!("upload{}", shared.log.lock().expect("no panic").len());
            format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>")
        }
        ("PUT", Some(id), Some(number)) => {
            parts.insert((id, number), request.body.clone());
            String::new()
        }
        ("POST", Some(id), _) => {
            let whole: Vec<u8> = parts.range((id.clone(), 0)..(id, usize::MAX)).flat_map(|(_, part)| part.clone()).collect();
            store(file, &whole);
            "<CompleteMultipartUploadResult><ETag>\"whole\"</ETag></CompleteMultipartUploadResult>".to_owned()
        }
        ("DELETE", None, _) => {
            let _ = std::fs::remove_file(file);
            String::new()
        }
        ("DELETE", Some(id), _) => {
            parts.retain(|(of, _), _| *of != id);
            String::new()
        }
        ("PUT", None, _) => {
            store(file, &request.body);
            String::new()
        }
        other => panic!("no such request: {other:?}"),
    };
    drop(parts);
    let status = if request.method == "DELETE" { 204 } else { 200 };
    respond(shared, writer, request, status, "ETag: \"put\"\r\n", body.as_bytes())
}

/// An object appears whole.
fn store(file: &Path, bytes: &[u8]) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let folder = file.parent().expect("a folder");
    std::fs::create_dir_all(folder).expect("a folder");
    let mut temporary = std::env::temp_dir();
    temporary.push(format!("halostream-put-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    std::fs::write(&temporary, bytes).expect("a file");
    std::fs::rename(&temporary, file).or_else(|_| std::fs::write(file, bytes)).expect("a name");
    let _ = std::fs::remove_file(&temporary);
}

fn respond(shared: &Shared, writer: &mut TcpStream, request: &Request, status: u16, headers: &str, body: &[u8]) -> Option<()> {
    let head = format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    writer.write_all(head.as_bytes()).ok()?;
    if request.method != "HEAD" {
        writer.write_all(body).ok()?;
        shared.sent.fetch_add(body.len(), Ordering::SeqCst);
    }
    Some(())
}

/// Waits until so many are here.
fn gather(shared: &Shared, many: usize) {
    let mut waiting = shared.waiting.lock().expect("no panic");
    *waiting += 1;
    shared.most_waiting.fetch_max(*waiting, Ordering::SeqCst);
    shared.met.notify_all();
    // A reader that never sends so many is told apart by the count, not by this time.
    let together = |_: &mut usize| shared.most_waiting.load(Ordering::SeqCst) < many;
    let (mut waiting, _) = shared.met.wait_timeout_while(waiting, Duration::from_millis(500), together).expect("no panic");
    *waiting -= 1;
}

fn range_of(text: &str, total: usize) -> Option<std::ops::Range<usize>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (first.parse::<usize>(), last.parse::<usize>()) {
        (Ok(first), Ok(last)) => first..(last + 1).min(total),
        (Ok(first), Err(_)) => first..total,
        (Err(_), Ok(last)) => total.saturating_sub(last)..total,
        _ => return None,
    };
    (range.start < range.end).then_some(range)
}

/// ListObjectsV2, three keys a page, so that every listing has several.
fn listing(shared: &Shared, request: &Request) -> String {
    const PAGE: usize = 3;
    let bucket = shared.root.join(request.path.trim_matches('/'));
    let mut keys = Vec::new();
    files(&bucket, "", &mut keys);
    let of = |name: &str| request.query.get(name).cloned().unwrap_or_default();
    let (prefix, delimiter, after) = (of("prefix"), of("delimiter"), of("continuation-token"));
    let mut entries: Vec<(String, bool)> = keys
        .iter()
        .filter_map(|key| {
            let rest = key.strip_prefix(&prefix)?;
            match rest.split_once('/') {
                Some((folder, _)) if !delimiter.is_empty() => Some((format!("{prefix}{folder}/"), true)),
                _ => Some((key.clone(), false)),
            }
        })
        .collect();
    entries.sort();
    entries.dedup();
    entries.retain(|(key, _)| *key > after);
    let is_truncated = entries.len() > PAGE;
    entries.truncate(PAGE);
    let mut body = format!("<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>");
    if is_truncated {
        body += &format!("<NextContinuationToken>{}</NextContinuationToken>", entries[PAGE - 1].0);
    }
    for (key, is_folder) in entries {
        body += &match is_folder {
            true => format!("<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>"),
            false => {
                let found = std::fs::metadata(bucket.join(&key)).expect("a file");
                let changed = found.modified().expect("a time").duration_since(UNIX_EPOCH).expect("after 1970").as_nanos();
                let size = found.len();
                let time = "2022-01-01T00:00:00.000Z";
                format!(
                    "<Contents><Key>{key}</Key><LastModified>{time}</LastModified><ETag>\"{changed}\"</ETag><Size>{size}</Size></Contents>"
                )
            }
        };
    }
    body + "</ListBucketResult>"
}

fn files(folder: &Path, prefix: &str, keys: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_str().expect("UTF-8"));
        match entry.path().is_dir() {
            true => files(&entry.path(), &format!("{name}/"), keys),
            false => keys.push(name),
        }
    }
}
