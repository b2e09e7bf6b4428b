#!/usr/bin/env bash
# Many small jobs through one service: memory after the first hundred and after the last must agree within 5 %, and no
# handles or threads may be left behind. Not part of .ci/run: it takes minutes to hours.
#
#   .ci/soak.sh [JOBS] [BINARY]
set -euo pipefail
jobs=${1:-2000}
bin=$(realpath "${2:-$(dirname "$0")/../target/release/halostream}")
at=$(mktemp -d)
trap 'kill "$pid" 2>/dev/null || true; rm -rf "$at"' EXIT
pid=
mkdir "$at/in" "$at/aside"
cd "$at"
printf '[input]\npath = "{input}"\n[[step]]\nop = "cast"\ndtype = "float64"\n[output]\npath = "{output}"\n' > job.toml
cat > service.toml <<'TOML'
[service]
listen = "127.0.0.1:0"
state = "state"
memory = "64MiB"
max_jobs = 2
[[watch]]
name = "soak"
directory = "in"
pattern = "*.zarr"
complete = ["rename"]
job = "job.toml"
output = "out/{stem}.zarr"
after = "delete"
poll = "200ms"
TOML
"$bin" sample volume "$at/seed.zarr" --shape 16,64,64 --chunks 8,32,32 --dtype float32 --quiet
"$bin" serve service.toml --log-format json 2> log & pid=$!
done_count() { grep -c '"event":"job_done"' log || true; }
figures() {
    rss=$(awk '/^VmRSS/ {print $2}' "/proc/$pid/status")
    threads=$(awk '/^Threads/ {print $2}' "/proc/$pid/status")
    handles=$(ls "/proc/$pid/fd" | wc -l)
}
wait_for() {
    while [ "$(done_count)" -lt "$1" ]; do
        kill -0 "$pid" || { tail -5 log; exit 1; }
        sleep 0.2
    done
    # What follows the last job ends too.
    sleep 3
}
drop() {
    for ((n = $1; n < $2; n++)); do
        cp -r seed.zarr "aside/$n.zarr"
        mv "aside/$n.zarr" "in/$n.zarr"
        rm -rf "out/$((n - 50)).zarr"
    done
}
drop 0 100; wait_for 100; figures
first=$rss; first_threads=$threads; first_handles=$handles
echo "after 100 jobs: RSS $rss kB, $threads threads, $handles handles"
for ((from = 100; from < jobs; from += 100)); do
    to=$((from + 100 < jobs ? from + 100 : jobs))
    drop "$from" "$to"; wait_for "$to"
done
figures
echo "after $jobs jobs: RSS $rss kB, $threads threads, $handles handles"
kill -TERM "$pid"; wait "$pid"
[ "$threads" -le "$first_threads" ] || { echo "threads were left behind"; exit 1; }
[ "$handles" -le "$first_handles" ] || { echo "handles were left behind"; exit 1; }
[ "$((rss * 100))" -le "$((first * 105))" ] || { echo "memory grew by more than 5 %"; exit 1; }
echo "flat"
