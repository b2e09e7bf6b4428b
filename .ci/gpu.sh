#!/usr/bin/env bash
# Tests and figures on a machine with a GPU, which needs neither a Rust toolchain nor a network.
#
#   .ci/gpu.sh pack   where Rust is: builds release binaries into target/gpu (below 64 MiB), to be carried with this tree
#   .ci/gpu.sh        where the GPU is: runs the tests on it, then the benchmark, in less than 10 minutes; writes
#                     benches/results/DATE-DEVICE.md. Ends well, with a line, where there is no device.
#
# NVRTC: HALOSTREAM_NVRTC, else the one that was packed, else what CUDA's usual folders and Python environments hold.
set -euo pipefail
cd "$(dirname "$0")/.."
carried=target/gpu

if [ "${1:-}" = pack ]; then
    export CARGO_TERM_COLOR=never
    built=${CARGO_TARGET_DIR:-target}/release
    cargo build --release
    tests=$(cargo test --release --lib --no-run 2>&1 | sed -n 's/.*Executable unittests src\/lib.rs (\(.*\))/\1/p')
    mkdir -p "$carried"
    cp "$built/halostream" "$carried/halostream"
    cp "$tests" "$carried/tests"
    strip "$carried/halostream" "$carried/tests"
    # Where the GPU's machine may lack NVRTC: HALOSTREAM_NVRTC, as for a run, names the folder of the one to bring.
    if [ -d "${HALOSTREAM_NVRTC:-}" ]; then
        (cd "$HALOSTREAM_NVRTC" && tar -c --exclude='*.alt.*' libnvrtc*.so.*) | xz -3 -T0 >"$carried/nvrtc.tar.xz"
    fi
    if ldd "$carried/halostream" | grep -E 'libcuda|libnvrtc'; then
        echo "the binary is linked to CUDA: it must not be" >&2
        exit 1
    fi
    size=$(du -sk "$carried" | cut -f1)
    echo "$carried: $size KiB"
    [ "$size" -lt 65536 ] || { echo "more than 64 MiB to carry" >&2; exit 1; }
    exit 0
fi

if [ ! -x "$carried/tests" ]; then
    echo "no binaries in $carried: run .ci/gpu.sh pack where Rust is, and bring them along" >&2
    exit 1
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/halostream-gpu-XXXXXX")
trap 'rm -rf "$work"' EXIT
if [ -z "${HALOSTREAM_NVRTC:-}" ] && [ -e "$carried/nvrtc.tar.xz" ]; then
    mkdir "$work/nvrtc"
    tar -xJf "$carried/nvrtc.tar.xz" -C "$work/nvrtc"
    export HALOSTREAM_NVRTC=$work/nvrtc
elif [ -z "${HALOSTREAM_NVRTC:-}" ]; then
    found=$(find /usr/local/cuda*/ /usr/lib /opt "$HOME" -name 'libnvrtc.so.1[23]*' 2>/dev/null | head -1 || true)
    [ -z "$found" ] || export HALOSTREAM_NVRTC=$(dirname "$found")
fi
device=$("$carried/tests" --ignored --exact --nocapture compute::gpu::tests::what_device_is_here | sed -n 's/^device: //p')
case $device in
none*)
    echo "nothing was run on a device: $device"
    exit 0
    ;;
esac

export HALOSTREAM_CACHE=$work/cache

# The test bodies that run on the CPU elsewhere; devices come first in their lists here.
timeout 240 "$carried/tests" compute:: ks_test

name=$(echo "$device" | cut -d, -f1 | tr -cs 'A-Za-z0-9' '-' | sed 's/-*$//')
result=benches/results/$(date +%F)-$name.md
mkdir -p benches/results
{
    echo "# ks_test on $device"
    echo
    echo "Stack 2500 x 1834 x 17 complex64, half window 5 x 5; data in $work, page cache warm, --no-sync."
    echo
    echo '```'
    timeout 60 "$carried/tests" --ignored --exact --nocapture operators::ks_test::device_tests::time_of_kernels_and_copies |
        sed -n 's/^figure: //p'
    echo '```'
} >"$result"

"$carried/halostream" --log-format json sample slc "$work/slc.zarr" --shape 2500,1834,17 --codec none >/dev/null
job() { # NAME DEVICES FROM
    cat >"$work/$1.toml" <<TOML
[input]
path = "slc.zarr"
[[step]]
op = "ks_test"
half_window = [5, 5]
[output]
path = "$1.zarr"
from = "$3"
codec = "none"
[engine]
devices = $2
TOML
    {
        echo
        echo "## $1: devices = $2, $3"
        echo
        echo '```'
        timeout 120 "$carried/halostream" run "$work/$1.toml" --no-sync --report "$work/$1.json"
        sed -n '/"devices"/,/^  \]/p' "$work/$1.json"
        echo '```'
    } >>"$result"
}
same() { # NAME NAME: all chunks equal (metadata holds each job's own file)
    diff -rq -x zarr.json -x .zattrs -x .zarray -x .zgroup "$work/$1.zarr" "$work/$2.zarr"
    rm -rf "$work/$2.zarr"
}
job k-cpu '["cpu"]' ks_test.k
job k-one '["cuda:0"]' ks_test.k
same k-cpu k-one
job k-two '["cuda:0", "cuda:0"]' ks_test.k
same k-cpu k-two
rm -rf "$work/k-cpu.zarr"
job all-cpu '["cpu"]' ks_test
job all-two '["cuda:0", "cuda:0"]' ks_test
same all-cpu all-two
echo >>"$result"
echo "All outputs equal the CPU's, byte for byte." >>"$result"
echo "wrote $result"
