//! Bytes of a chunk: 64-byte aligned, always initialised, charged to an account of the budget.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::budget::BudgetError;
pub use super::budget::{Account, Lease};

const ALIGN: usize = 64;

#[repr(align(64))]
struct Aligned;

/// Bytes that a buffer of `len` bytes takes.
pub fn capacity_for(len: usize) -> usize {
    len.div_ceil(ALIGN) * ALIGN
}

/// Allocations of at least this many bytes are mapped from the system, in large pages where it has them: a first touch costs
/// more than the arithmetic of many a job, and a page of 2 MiB costs one of them where small ones cost 512.
const MAPPED: usize = LARGE_PAGE;
const LARGE_PAGE: usize = 2 << 20;
/// No page is larger than this unless it is a large one: what is unmapped begins at a multiple of it.
const SMALL_PAGE: usize = 64 << 10;

/// An owned allocation. Zeroed when fresh (the system's pages are), never uninitialised afterwards.
pub(super) struct Memory {
    ptr: NonNull<u8>,
    capacity: usize,
}

// SAFETY: Memory owns its bytes exclusively, like a Box<[u8]>.
unsafe impl Send for Memory {}
unsafe impl Sync for Memory {}

impl Memory {
    pub(super) fn new(capacity: usize) -> Self {
        if capacity == 0 {
            // Aligned like every other buffer, so that an empty one views as elements too.
            return Self { ptr: NonNull::<Aligned>::dangling().cast(), capacity };
        }
        let layout = Self::layout(capacity);
        // SAFETY: the layout has a size above zero.
        let ptr = if capacity >= MAPPED { map(capacity) } else { NonNull::new(unsafe { alloc_zeroed(layout) }) };
        match ptr {
            Some(ptr) => Self { ptr, capacity },
            None => handle_alloc_error(layout),
        }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGN).expect("capacities come from leases, far below isize::MAX")
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.capacity {
            0 => {}
            // SAFETY: mapped in `new` with this length.
            MAPPED.. => unsafe {
                libc::munmap(self.ptr.as_ptr().cast(), self.capacity.next_multiple_of(SMALL_PAGE));
            },
            // SAFETY: allocated in `new` with this layout.
            _ => unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.capacity)) },
        }
    }
}

/// Fresh pages for `capacity` bytes, none of them touched, which begin where a large page may.
fn map(capacity: usize) -> Option<NonNull<u8>> {
    // Whole pages, so that what is unmapped one day is what was mapped here.
    let used = capacity.checked_next_multiple_of(SMALL_PAGE)?;
    let len = used.checked_add(LARGE_PAGE)?;
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping; nothing of this program lies there.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = start.cast::<u8>();
    let before = start.align_offset(LARGE_PAGE);
    // SAFETY: all of it lies in the mapping above, whose start is that of a small page: `before`, `used` and the rest of a
    // large page are its whole length. What is unmapped is never used.
    unsafe {
        let first = start.add(before);
        if before > 0 {
            libc::munmap(start.cast(), before);
        }
        libc::munmap(first.add(used).cast(), LARGE_PAGE - before);
        // Only a wish: without large pages everything works as well.
        libc::madvise(first.cast(), used, libc::MADV_HUGEPAGE);
        NonNull::new(first)
    }
}

/// A buffer of `len` bytes. Its memory goes back to its account's pool on drop, and its lease with it.
/// The content of a reused buffer is what its last user left: fill it.
pub struct Buffer {
    memory: Option<Memory>,
    len: usize,
    lease: Lease,
}

impl Buffer {
    /// A buffer of `len` bytes paid for by `lease`; what the lease holds beyond that is given back.
    pub fn new(mut lease: Lease, len: usize) -> Result<Self, BudgetError> {
        Self::from_lease(&mut lease, len)
    }

    /// A buffer of `len` bytes that keeps all of `lease`: where lengths differ a little, one size of memory serves them all,
    /// and is used again.
    pub fn roomy(lease: Lease, len: usize) -> Result<Self, BudgetError> {
        let room = usize::try_from(lease.bytes()).unwrap_or(usize::MAX);
        if len > room {
            return Self::new(lease, len);
        }
        let memory = lease.account().take_memory(capacity_for(room));
        Ok(Self { memory: Some(memory), len, lease })
    }

    /// Cuts the bytes of a new buffer off a lease.
    pub fn from_lease(lease: &mut Lease, len: usize) -> Result<Self, BudgetError> {
        let lease = lease.split(len as u64)?;
        let memory = lease.account().take_memory(capacity_for(len));
        Ok(Self { memory: Some(memory), len, lease })
    }

    /// A buffer outside any budget, for tests and small metadata.
    pub fn loose(len: usize) -> Self {
        let lease = Account::unbounded("loose").try_lease(capacity_for(len) as u64);
        Self::new(lease.expect("unbounded"), len).expect("leased just now")
    }

    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut buffer = Self::loose(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// The account that its bytes are charged to.
    pub fn account_name(&self) -> &'static str {
        self.lease.account().name()
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("present until drop")
    }

    /// Views the bytes as elements. The length must be a whole number of them.
    pub fn as_slice_of<T: bytemuck::Pod>(&self) -> &[T] {
        bytemuck::cast_slice(self)
    }

    pub fn as_mut_slice_of<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self)
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `capacity >= len` initialised bytes, owned by this buffer.
        unsafe { std::slice::from_raw_parts(self.memory().ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory().ptr.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.lease.give_back(self.memory.take());
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_begin_at_large_pages_and_are_zero() {
        for len in [MAPPED - 1, MAPPED, MAPPED + 1, 3 * MAPPED + 4097] {
            let mut memory = Memory::new(capacity_for(len));
            assert!((memory.ptr.as_ptr() as usize).is_multiple_of(if memory.capacity() < MAPPED { ALIGN } else { LARGE_PAGE }));
            // SAFETY: as many initialised bytes, owned by `memory`.
            let bytes = unsafe { std::slice::from_raw_parts_mut(memory.ptr.as_mut(), memory.capacity()) };
            assert!(bytes.iter().all(|b| *b == 0));
            bytes.fill(7);
        }
    }

    #[test]
    fn a_mapping_that_goes_takes_nothing_of_its_neighbours() {
        const PAGE: usize = 4096;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // Every distance from a large page at which a mapping may begin: the system puts it below what is there, so a
        // neighbour of so many pages is laid between. Neighbours stay, and each must still be there at the end.
        let mut neighbours = Vec::new();
        for pages in 1..LARGE_PAGE / PAGE {
            // SAFETY: a new mapping of this test's own.
            let neighbour = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, access, kind, -1, 0) }.cast::<u8>();
            assert_ne!(neighbour.cast(), libc::MAP_FAILED);
            neighbours.push((neighbour, pages));
            drop(Memory::new(MAPPED + ALIGN));
        }
        for (neighbour, pages) in neighbours {
            let mut seen = vec![0u8; pages];
            // SAFETY: asks which pages are there; those that are not make it fail, and nothing else.
            let is_there = unsafe { libc::mincore(neighbour.cast(), pages * PAGE, seen.as_mut_ptr()) } == 0;
            assert!(is_there, "{pages} pages lost some");
            // SAFETY: mapped above, used no more.
            unsafe { libc::munmap(neighbour.cast(), pages * PAGE) };
        }
    }

    #[test]
    fn mapped_memory_goes_back_to_the_system() {
        // Far more than any machine for tests has: each must be gone before the next.
        for _ in 0..10_000 {
            let memory = Memory::new(1 << 28);
            // SAFETY: inside the memory.
            unsafe { memory.ptr.as_ptr().add(12_345_678).write(1) };
        }
    }
}
