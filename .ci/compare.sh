#!/usr/bin/env bash
# Our binary beside what users would run instead, on the same inputs in the same rounds: checks that the results agree and
# writes benches/results/DATE-MACHINE.md. Needs ../shared/peers; makes a Python environment for the peers on its first run.
#
#   .ci/compare.sh [--scale usual|small|seed] [--repeat 5] [--append]
#                  [--only gaussian,tv20,stacksum,stackrow0,ks,slc,insar,identity,overhead,convert,benches]
#
# HALOSTREAM_COMPARE (default target/compare) holds inputs and outputs: 3 GB at small and usual scale, 30 GB at seed scale.
# HALOSTREAM_PEERS names a Python with ../shared/peers/requirements.txt; --insar-python another with insar_requirements.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ ! -d ../shared/peers ]; then
    echo "comparison skipped: no ../shared/peers here"
    exit 0
fi
work=${HALOSTREAM_COMPARE:-target/compare}
mkdir -p "$work"
python=${HALOSTREAM_PEERS:-$work/venv/bin/python}
if [ ! -x "$python" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet -r ../shared/peers/requirements.txt
fi
cargo build --release --quiet
target=${CARGO_TARGET_DIR:-target}
exec "$python" .ci/compare.py --work "$work" --bin "$target/release/halostream" "$@"
