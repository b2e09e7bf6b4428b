//! "4GiB", "30s": sizes and durations as people write them.
