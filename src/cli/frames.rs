//! `sample tiff FOLDER`: the frames of a film, a TIFF file each, as a camera leaves them.
//!
//! Frames are made and written one by one, by as many threads as the limit has room for. The folder is staged beside its name and
//! renamed when it is whole; frames that a stopped run has left are not made again.

use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use tiff::encoder::TiffEncoder;
use tiff::encoder::colortype::{ColorType, Gray8, Gray16, Gray32Float};

use super::run::{Options, stopped, watch_signals};
use super::sample::Wanted;
use super::{Exit, complain, say};
use crate::array::DType;
use crate::config::SampleSpec;
use crate::config::units::{format_bytes, parse_bytes};
use crate::engine::staging;
use crate::files::stamp::Hash;
use crate::files::{self, File};
use crate::plan::machine::Machine;
use crate::reader::{Source, sample};

/// Offsets of these files have 32 bits.
const MOST_FRAME_BYTES: u64 = (1 << 32) - (1 << 16);

/// True for outputs that are folders of frames; `sample tiff OUT.zarr` is an array like other samples.
pub fn are_wanted(wanted: &Wanted) -> bool {
    wanted.name == "tiff" && wanted.out.extension().is_none_or(|e| e != "zarr")
}

pub fn write(wanted: &Wanted, options: &Options) -> Exit {
    let film = match Film::new(wanted, options.sync) {
        Ok(film) => film,
        Err(reason) => {
            complain(format!("sample: {reason}"));
            return Exit::Usage;
        }
    };
    let began = Instant::now();
    let stop = Arc::new(AtomicBool::new(false));
    let signal = watch_signals(&stop);
    match film.write(&stop) {
        Ok(made) if made < film.frames => stopped(Path::new("sample"), signal.load(Ordering::SeqCst), made),
        Ok(_) => {
            if !options.quiet {
                let (out, bytes) = (film.out.display(), format_bytes(film.frames * film.frame_bytes));
                say(format!("wrote {out} in {:.2} s: {} frames, {bytes}", began.elapsed().as_secs_f64(), film.frames));
            }
            Exit::Done
        }
        Err(reason) => {
            complain(format!("sample: {reason}"));
            Exit::Failed
        }
    }
}

struct Film {
    source: sample::SampleSource,
    out: PathBuf,
    staged: PathBuf,
    frames: u64,
    frame_bytes: u64,
    threads: u64,
    is_synced: bool,
}

impl Film {
    fn new(wanted: &Wanted, is_synced: bool) -> Result<Self, String> {
        if wanted.chunks.is_some() {
            return Err("--chunks: each frame is a file of its own".to_owned());
        }
        if wanted.codec.is_some() {
            return Err("--codec: frames are not packed".to_owned());
        }
        let dtype = match &wanted.dtype {
            Some(name) => Some(DType::parse(name).ok_or_else(|| format!("--dtype: \"{name}\" is no dtype"))?),
            None => None,
        };
        let machine = Machine::detect();
        let limit = match &wanted.memory {
            Some(text) => parse_bytes(text).map_err(|e| format!("--memory: {e}"))?,
            None => machine.memory_available / 2,
        };
        let mut spec =
            SampleSpec { kind: wanted.name.clone(), shape: wanted.shape.clone(), chunks: None, dtype, seed: wanted.seed };
        let whole = sample::open(&spec).map_err(|e| e.to_string())?.meta().array.shape.clone();
        spec.chunks = Some(std::iter::once(1).chain(whole.iter().skip(1).copied()).collect());
        let source = sample::open(&spec).map_err(|e| e.to_string())?;
        let meta = source.meta();
        let frame_bytes = meta.chunk_shape.iter().product::<u64>() * meta.array.dtype.size() as u64;
        if frame_bytes > MOST_FRAME_BYTES {
            return Err(format!("--shape: a frame of {frame_bytes} bytes is more than a TIFF file holds; make it smaller"));
        }
        // A frame as values, and as a file.
        let needed = 2 * frame_bytes + (1 << 16);
        let threads = (limit / needed).min(machine.cores as u64);
        if threads == 0 {
            return Err(format!("--memory: {} is below the {} that a frame takes", format_bytes(limit), format_bytes(needed)));
        }
        if files::find(&wanted.out).map_err(|e| format!("{}: {e}", wanted.out.display()))?.is_some() {
            return Err(format!("OUT: {} is there already: remove it, or choose another name", wanted.out.display()));
        }
        let hash = format!("{:016x}", Hash::START.with(meta.identity.as_bytes()).mixed());
        let staged = staging::name(&wanted.out, &hash);
        Ok(Self { frames: meta.array.shape[0], source, out: wanted.out.clone(), staged, frame_bytes, threads, is_synced })
    }

    /// Writes what lacks; returns how many frames there are.
    fn write(&self, stop: &AtomicBool) -> Result<u64, String> {
        let failed = |path: &Path, e: std::io::Error| format!("{}: {e}{}", path.display(), files::advice(&e));
        files::make_folders(&self.staged).map_err(|e| failed(&self.staged, e))?;
        let (next, made) = (AtomicU64::new(0), AtomicU64::new(0));
        let work = || -> Result<(), String> {
            let mut values = vec![0u64; self.frame_bytes.div_ceil(8) as usize];
            let mut encoded = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let frame = next.fetch_add(1, Ordering::Relaxed);
                if frame >= self.frames {
                    break;
                }
                let path = self.staged.join(self.name(frame));
                if files::find(&path).map_err(|e| failed(&path, e))?.is_none() {
                    self.encode(frame, bytemuck::cast_slice_mut(&mut values), &mut encoded)?;
                    let part = path.with_extension("part");
                    files::remove(&part).map_err(|e| failed(&part, e))?;
                    let written = File::create_new(&part).and_then(|mut file| file.write_all(&encoded));
                    written.map_err(|e| failed(&part, e))?;
                    files::rename(&part, &path).map_err(|e| failed(&path, e))?;
                }
                made.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.threads).map(|_| scope.spawn(work)).collect();
            let ended = workers.into_iter().map(|w| w.join().unwrap_or_else(|_| Err("a frame could not be made".to_owned())));
            ended.collect::<Vec<_>>().into_iter().collect::<Result<(), _>>()
        })?;
        let made = made.into_inner();
        if made == self.frames {
            if self.is_synced {
                files::sync_file_system(&self.staged).map_err(|e| failed(&self.staged, e))?;
            }
            files::rename(&self.staged, &self.out).map_err(|e| failed(&self.out, e))?;
        }
        Ok(made)
    }

    /// `frame_00017.tif`; as many digits as the last frame has, at least five.
    fn name(&self, frame: u64) -> String {
        let digits = (self.frames - 1).to_string().len().max(5);
        format!("frame_{frame:0digits$}.tif")
    }

    fn encode(&self, frame: u64, values: &mut [u8], encoded: &mut Vec<u8>) -> Result<(), String> {
        let values = &mut values[..self.frame_bytes as usize];
        self.source.read_chunk(&[frame, 0, 0], values, &mut Vec::new()).map_err(|e| e.to_string())?;
        encoded.clear();
        let shape = &self.source.meta().array.shape;
        let size = [shape[2] as u32, shape[1] as u32];
        let done = match self.source.meta().array.dtype {
            DType::U8 => image::<Gray8>(size, bytemuck::cast_slice(values), encoded),
            DType::F32 => image::<Gray32Float>(size, bytemuck::cast_slice(values), encoded),
            _ => image::<Gray16>(size, bytemuck::cast_slice(values), encoded),
        };
        done.map_err(|e| format!("frame {frame}: {e}"))
    }
}

/// One image in one strip.
fn image<C: ColorType>([cols, rows]: [u32; 2], values: &[C::Inner], encoded: &mut Vec<u8>) -> Result<(), tiff::TiffError>
where
    [C::Inner]: tiff::encoder::TiffValue,
{
    let mut file = TiffEncoder::new(Cursor::new(encoded))?;
    let mut image = file.new_image::<C>(cols, rows)?;
    image.rows_per_strip(rows)?;
    image.write_data(values)
}
