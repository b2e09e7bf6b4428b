#!/usr/bin/env bash
# Tests and figures on a machine with a GPU, which needs neither a Rust toolchain nor a network.
#
#   .ci/gpu.sh pack [NVRTC]  where Rust is: release binaries into .gpu-pack (below 64 MiB), to be carried with this tree;
#                            NVRTC: the folder of the one to bring, for a machine that has none
#   .ci/gpu.sh               where the GPU is: runs the tests on it, then the benchmarks, in less than 10 minutes; writes
#                            benches/results/DATE-DEVICE.md. Ends well, with a line, where there is no device.
#   .ci/gpu.sh rehearse      the same on a small stack and a driver that is the CPU (tests/gpu/driver.cpp), so that all but the
#                            figures is known to work before a device is there; needs a C++ compiler, writes no file
#
# NVRTC: HALOSTREAM_NVRTC, else the one that was packed, else what CUDA's usual folders and Python environments hold.
# Data: /dev/shm where 24 GiB are free there, else TMPDIR.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
carried=$root/.gpu-pack

pack() {
    export CARGO_TERM_COLOR=never
    local built=${CARGO_TARGET_DIR:-target}/release tests
    cargo build --release --bin halostream
    tests=$(cargo test --release --lib --no-run 2>&1 | tee /dev/stderr |
        sed -n 's/.*Executable unittests src\/lib.rs (\(.*\))/\1/p')
    if ldd "$built/halostream" "$tests" | grep -E 'libcuda|libnvrtc'; then
        echo "a binary is linked to CUDA: it must not be" >&2
        exit 1
    fi
    rm -rf "$carried"
    mkdir "$carried"
    strip -o "$carried/halostream" "$built/halostream"
    strip -o "$carried/tests" "$tests"
    gzip -9 "$carried/halostream" "$carried/tests"
    { git describe --always --dirty 2>/dev/null || echo unknown; } >"$carried/commit"
    if [ -n "${1:-}" ]; then
        (cd "$1" && tar -c --exclude='*.alt.*' libnvrtc*.so.*) | gzip -9 >"$carried/nvrtc.tar.gz"
    fi
    local size
    size=$(du -sk "$carried" | cut -f1)
    echo "${carried##*/}: $size KiB"
    [ "$size" -lt 65536 ] || { echo "more than 64 MiB to carry" >&2; exit 1; }
}

rehearse=
case ${1:-} in
pack)
    pack "${2:-}"
    exit
    ;;
rehearse) rehearse=yes ;;
'') ;;
*)
    echo "usage: .ci/gpu.sh [pack [NVRTC] | rehearse]" >&2
    exit 2
    ;;
esac

if [ ! -e "$carried/tests.gz" ]; then
    echo "no binaries in $carried: run .ci/gpu.sh pack where Rust is, and bring them along" >&2
    exit 1
fi
shm=$(df -k --output=avail /dev/shm 2>/dev/null | tail -1 || true)
[ "${shm:-0}" -gt $((24 << 20)) ] && place=/dev/shm || place=${TMPDIR:-/tmp}
work=$(mktemp -d "$place/halostream-gpu-XXXXXX")
trap 'rm -rf "$work"' EXIT
for name in halostream tests; do
    gunzip -c "$carried/$name.gz" >"$work/$name"
    chmod +x "$work/$name"
done

# The driver where the loader does not look for it, and NVRTC.
if ! ldconfig -p 2>/dev/null | grep -q libcuda.so.1; then
    for folder in /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/wsl/lib; do
        [ ! -e "$folder/libcuda.so.1" ] || export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    done
fi
if [ -z "${HALOSTREAM_NVRTC:-}" ] && [ -e "$carried/nvrtc.tar.gz" ]; then
    mkdir "$work/nvrtc"
    tar -xzf "$carried/nvrtc.tar.gz" -C "$work/nvrtc"
    export HALOSTREAM_NVRTC=$work/nvrtc
elif [ -z "${HALOSTREAM_NVRTC:-}" ]; then
    found=$(find /usr/local/cuda*/ /usr/lib /opt ${HOME:+"$HOME"} -name 'libnvrtc.so.1[23]*' 2>/dev/null |
        awk -F/ '{ print $NF "\t" $0 }' | sort -V | tail -1 | cut -f2 || true)
    [ -z "$found" ] || { HALOSTREAM_NVRTC=$(dirname "$found"); export HALOSTREAM_NVRTC; }
fi
export HALOSTREAM_CACHE=$work/cache

if [ -n "$rehearse" ]; then
    command -v c++ >/dev/null || { echo "nothing was rehearsed: no C++ compiler here"; exit 0; }
    mkdir "$work/fake"
    c++ -std=c++17 -O1 -shared -fPIC -o "$work/fake/libcuda.so" tests/gpu/driver.cpp
    cp "$work/fake/libcuda.so" "$work/fake/libcuda.so.1"
    cp "$work/fake/libcuda.so" "$work/fake/libnvrtc.so"
    unset HALOSTREAM_NVRTC
    export LD_LIBRARY_PATH=$work/fake FAKE_CUDA_FOLDER=$work/fake FAKE_CUDA_SHIM=$root/src/compute/gpu/shim.h
fi
device=$("$work/tests" --ignored --exact --nocapture compute::gpu::tests::what_device_is_here | sed -n 's/^device: //p')
if [[ $device == none* ]]; then
    echo "nothing was run on a device: $device"
    exit 0
fi

# Ten minutes for everything, less what it takes to come and go.
within() { # SECONDS COMMAND...
    local most=$((560 - SECONDS))
    [ "$most" -gt 5 ] || { echo "the time is up before: ${*:2}" >&2; exit 1; }
    timeout "$((most < $1 ? most : $1))" "${@:2}"
}
# A field of a report, summed over its places: it is one number a line.
field() { awk -v key="\"$2\":" '$1 == key { sum += $2 } END { printf "%.6f", sum }' "$work/$1.json"; }
seconds() { # COMMAND...: how long it takes
    local since=$EPOCHREALTIME
    "$@" >&2
    awk -v a="$since" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.4f", b - a }'
}

shape=2500,1834,17
name=$(echo "$device" | cut -d, -f1 | tr -cs 'A-Za-z0-9' '-' | sed 's/-*$//')
result=$root/benches/results/$(date +%F)-$name.md
skip=()
if [ -n "$rehearse" ]; then
    shape=60,80,17 result=$work/result.md
    # The driver's compiler makes no machine code.
    skip=(--skip kernel_)
fi
export HALOSTREAM_BENCH_STACK=$shape
mkdir -p "$root/benches/results"
# The test bodies that run on the CPU elsewhere; devices come first in their lists here.
within 240 "$work/tests" compute:: ks_test amplitude "${skip[@]}"
exec 3>"$result"
trap 'status=$?; [ $status = 0 ] || tail -40 "$result" >&2; rm -rf "$work"; exit $status' EXIT
say() { printf '%s\n' "$@" >&3; }

say "# ks_test on $device" ""
say "halostream $(cat "$carried/commit"); $(nproc) cores; stack $shape complex64, half window 5 x 5; all data in $place," \
    "uncompressed, page cache warm, --no-sync. Times of kernels and copies: best of seven." "" "## Kernels and copies" "" '```'
figures=$(within 120 "$work/tests" --ignored --exact --nocapture \
    operators::ks_test::device_tests::time_of_kernels_and_copies | sed -n 's/^figure: //p')
[ -n "$figures" ] || { echo "no figures of kernels and copies" >&2; exit 1; }
say "$figures" '```'
gbps() { awk -v key="$1" '$1 == key { print $4 }' <<<"$figures"; }

cd "$work"
run="$work/halostream --log-format json"
within 120 $run sample slc slc.zarr --shape "$shape" --codec none --no-sync >/dev/null
read_all() { find "$1" -type f -print0 | xargs -0 -P "$(nproc)" -n 16 cat >/dev/null; }
copy_all() { # FROM TO
    mkdir -p "$2"
    (cd "$1" && find . -type f -print0 | xargs -0 -P "$(nproc)" -n 16 cp --parents -t "../$2")
}
read_all slc.zarr
read_s=$(seconds read_all slc.zarr)

one='["cuda:0"]' two='["cuda:0", "cuda:0"]'
job() { # NAME DEVICES FROM OUTPUT
    cat >"$1.toml" <<TOML
[input]
path = "slc.zarr"
[[step]]
op = "ks_test"
half_window = [5, 5]
[output]
path = "$4"
from = "$3"
$([[ $4 != *.zarr ]] || echo 'codec = "none"')
[engine]
devices = $2
TOML
    within 120 $run run "$1.toml" --no-sync --report "$1.json" 2>"$1.log" >&2 || { cat "$1.log" >&2; exit 1; }
}
# The slowest leg of a job that overlaps all of them: bytes over the bus at the rates above, files read and written.
tell() { # NAME WRITE_S
    awk -v name="$1" -v wall="$(field "$1" wall_s)" -v up="$(field "$1" bytes_up)" -v down="$(field "$1" bytes_down)" \
        -v upload="$(gbps upload)" -v download="$(gbps download)" -v read="$read_s" -v write="$2" 'BEGIN {
        up /= upload * 1e9 + 1; down /= download * 1e9 + 1
        bus = up > down ? up : down; files = read > write ? read : write
        printf "| %s | %.3f | %.3f | %.0f %% | %.3f | %.0f %% |\n", name, wall, bus, 100 * bus / wall, files, 100 * files / wall
    }' >&3
}
same() { # NAME NAME: all chunks equal (metadata holds each job's own file)
    diff -rq -x zarr.json -x .zattrs -x .zarray -x .zgroup "$1.zarr" "$2.zarr"
    rm -rf "$2.zarr"
}

say "" "## End to end" "" "Bus: upload or download, the longer; files: input read or output written by $(nproc) processes, the longer." \
    "" "| job | wall s | bus s | of wall | files s | of wall |" "|---|---|---|---|---|---|"
job k-cpu '["cpu"]' ks_test.k k-cpu.zarr
write_s=$(seconds copy_all k-cpu.zarr copy)
rm -rf copy
tell k-cpu "$write_s"
# The first has to compile the kernels.
for name_of in k-first k-one k-two; do
    [ "$name_of" = k-two ] && devices=$two || devices=$one
    [ "$name_of" = k-first ] && export HALOSTREAM_CACHE=$work/empty || export HALOSTREAM_CACHE=$work/cache
    job "$name_of" "$devices" ks_test.k "$name_of.zarr"
    same k-cpu "$name_of"
    tell "$name_of" "$write_s"
done
rm -rf k-cpu.zarr
job all-cpu '["cpu"]' ks_test all-cpu.zarr
write_s=$(seconds copy_all all-cpu.zarr copy)
rm -rf copy
tell all-cpu "$write_s"
for name_of in all-one all-two; do
    [ "$name_of" = all-two ] && devices=$two || devices=$one
    job "$name_of" "$devices" ks_test "$name_of.zarr"
    same all-cpu "$name_of"
    tell "$name_of" "$write_s"
done
rm -rf all-cpu.zarr
say "" "\`k\`: the counts, one byte a cell; \`all\`: dist and p. \`cpu\`: no device; \`one\`: $one; \`two\`: $two; \`first\`: kernels" \
    "compiled. Outputs of every job on a device equal the CPU's, byte for byte." "" "Devices of k-two:" "" '```json'
sed -n '/"devices"/,/^  \]/p' k-two.json >&3
say '```'

say "" "## Straightforward, by Numba" "" '```'
if python=$(command -v "${HALOSTREAM_PYTHON:-python3}"); then
    job k-npy "$one" ks_test.k k.npy
    printf '[input]\npath = "slc.zarr"\n[output]\npath = "slc.npy"\n' >npy.toml
    within 60 $run run npy.toml --no-sync >/dev/null 2>&1
    status=0
    within 120 env ${rehearse:+NUMBA_ENABLE_CUDASIM=1} "$python" "$root/benches/plain_ks.py" slc.npy k.npy 5 5 >numba.log 2>&1 ||
        status=$?
    grep '^numba: ' numba.log >&3 || tail -5 numba.log >&3
    [ $status = 0 ] || [ $status = 3 ] || { cat numba.log >&2; exit 1; }
else
    say "numba: not compared, there is no Python"
fi
say '```'
cd "$root"
cat "$result"
[ -n "$rehearse" ] && echo "rehearsed in $SECONDS s: nothing of this was measured on a device" || echo "wrote $result in $SECONDS s"
