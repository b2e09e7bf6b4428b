//! Entry point: parse arguments, start logging, call one command, turn the result into an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Freed blocks go back to the system at once, so that the memory limit means resident memory.
    // SAFETY: called before any other thread exists; mallopt only sets allocator parameters.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_ARENA_MAX, 4);
    }
    halostream::cli::main()
}
