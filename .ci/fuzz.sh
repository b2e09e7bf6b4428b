#!/usr/bin/env bash
# Fuzzes each target for a number of seconds: .ci/fuzz.sh [SECONDS [TARGET...]]. Needs `cargo install cargo-fuzz` and a C++
# compiler. The first run builds for minutes. Ends with an error at the first finding, which lies in fuzz/artifacts/TARGET.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-60}
shift || true
[ $# -gt 0 ] || set -- metadata chunk job protocol park

# The sanitizer is unstable in rustc; on a stable toolchain this asks for it all the same. C codecs are instrumented too.
export RUSTC_BOOTSTRAP=1
export CFLAGS="${CFLAGS:-} -fsanitize=address -fno-omit-frame-pointer"
export ASAN_OPTIONS=detect_leaks=0

for target in "$@"; do
    mkdir -p "work/$target"
    length=1024
    case $target in metadata) length=4096 ;; job) length=2048 ;; esac
    dictionary=()
    [ -e "dict/$target.dict" ] && dictionary=("-dict=dict/$target.dict")
    nice -n 19 cargo fuzz run -s address "$target" "work/$target" "corpus/$target" -- \
        -max_total_time="$seconds" -max_len="$length" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=256 \
        -print_final_stats=1 "${dictionary[@]}"
done
