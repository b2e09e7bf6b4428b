"""Runs the peers and halostream side by side and writes one Markdown file. Called by compare.sh, which says how."""
import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT.parent / "shared" / "peers"

JOBS = {
    "gaussian": """
[input]
path = "{input}"
[[step]]
op = "gaussian_filter"
sigma = 3.0
boundary = "nearest"
[output]
path = "{output}"
codec = "{codec}"
if_exists = "overwrite"
""",
    "tv20": """
[input]
path = "{input}"
[[step]]
op = "denoise_tv_chambolle"
max_num_iter = 20
eps = 0
weight = 0.1
[output]
path = "{output}"
codec = "{codec}"
if_exists = "overwrite"
""",
    "stacksum": """
[input]
path = {list}
stack = 0
[[step]]
op = "sum"
axis = 0
[output]
path = "{output}"
codec = "{codec}"
if_exists = "overwrite"
""",
    "stackrow0": """
[input]
path = {list}
stack = 0
select = ":, 0:1, :"
[[step]]
op = "sum"
axis = 0
[output]
path = "{output}"
codec = "{codec}"
if_exists = "overwrite"
""",
    "ks": """
[input]
path = "{input}"
[[step]]
op = "ks_test"
half_window = 5
[output]
path = "{output}"
codec = "{codec}"
if_exists = "overwrite"
{more}
""",
    "insar": """
[input]
path = "{input}"
[[step]]
op = "ks_test"
half_window = 5
[[step]]
op = "select_shp"
[[step]]
op = "coherence"
inputs = ["input", "select_shp"]
min_count = 50
[[step]]
op = "emi"
[[step]]
op = "temporal_coherence"
inputs = ["coherence", "emi"]
[outputs.emi]
path = "{output}-emi.zarr"
from = "emi"
codec = "{codec}"
if_exists = "overwrite"
[outputs.t]
path = "{output}-t.zarr"
codec = "{codec}"
if_exists = "overwrite"
[outputs.mask]
path = "{output}-mask.zarr"
from = "select_shp.mask"
codec = "{codec}"
if_exists = "overwrite"
{more}
""",
    "identity": """
[input]
path = "{input}"
[output]
path = "{output}"
codec = "{codec}"
if_exists = "overwrite"
""",
    "convert": """
[input]
path = "{input}"
[output]
path = "{output}"
chunks = [40, 768, 1024]
codec = "{codec}"
if_exists = "overwrite"
""",
}
USUAL = {"gaussian": "seed", "tv20": "seed", "stacksum": "small", "stackrow0": "small"}
# Rows of ours with a memory limit, beside the one without.
LIMITED = {work: {"halostream-150MiB": '[engine]\nmemory = "150MiB"\n'} for work in ("gaussian", "tv20")}
# Measured again with all memory warm, beside these.
TOUCHED = {"gaussian": ("opencv", "dask"), "stacksum": ("dask", "tensorstore")}
INPUTS = {"gaussian": "gaussian.zarr", "tv20": "tv.zarr", "stacksum": "stacksum.zarr", "stackrow0": "stacksum.zarr"}


def run(cmd, **more):
    """One process: exit code, wall, CPU, peak memory, stdout."""
    start = time.perf_counter()
    process = subprocess.Popen([str(c) for c in cmd], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)
    out, err = process.stdout.read(), process.stderr.read()
    _, status, use = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{cmd} ended with {process.returncode}: {err.decode()[-2000:]}")
    return {
        "wall_s": time.perf_counter() - start,
        "cpu_s": use.ru_utime + use.ru_stime,
        "peak_rss_mb": use.ru_maxrss / 1024,
        "out": out.decode(),
    }


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()


def touch():
    """A virtual machine may have lost freed pages to its host: whoever writes to them next would pay for that."""
    subprocess.run([sys.executable, "-c", "b'1' * (4 << 30)"], check=True)


class Compare:
    def __init__(self, options):
        self.o = options
        self.work = Path(options.work).resolve()
        self.bin = Path(options.bin).resolve()
        self.lines = []

    def inputs(self, work, codec):
        """Where a workload's inputs lie: those of one scale, or of the one that facts and targets are told for."""
        scale = self.o.scale if self.o.scale != "usual" else USUAL[work]
        return self.work / (scale if codec == "zstd" else f"{scale}-{codec}")

    def say(self, line=""):
        print(line, flush=True)
        self.lines.append(line)

    def job(self, name, key=None, **values):
        path = self.work / f"{name}.toml"
        path.write_text(JOBS[key or name].format(**values))
        return path

    def ours(self, job, no_sync=True):
        return [self.bin, "run", job, "--quiet", *(["--no-sync"] if no_sync else [])]

    def table(self, head, rows):
        self.say("| " + " | ".join(head) + " |")
        self.say("|" + " --- |" * len(head))
        for row in rows:
            self.say("| " + " | ".join(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row) + " |")
        self.say()

    def round_robin(self, commands, before=None, outputs=()):
        """Interleaved runs, each once to warm up: name -> list of figures. Our job would find its outputs made: they go."""
        found = {name: [] for name in commands}
        for n in range(self.o.repeat + 1):
            for name, command in commands.items():
                if before:
                    before(name)
                for path in outputs:
                    remove(Path(path))
                figures = run(command)
                if n:
                    found[name].append(figures)
        return found

    def medians(self, found):
        rows = []
        for name, runs in found.items():
            walls = sorted(r["wall_s"] for r in runs)
            rows.append([name, statistics.median(walls), walls[0], walls[-1],
                         statistics.median(r["cpu_s"] for r in runs), max(r["peak_rss_mb"] for r in runs)])
        return rows

    def workload(self, work):
        for codec in self.o.codecs.split(","):
            self.workload_in(work, codec)

    def workload_in(self, work, codec):
        """A workload of the peer kit with our rows in the same rounds; input and outputs in one codec."""
        inputs = self.inputs(work, codec)
        source = inputs / INPUTS[work]
        names = [str(source / f"m{i}") for i in range(10)]
        extra = []

        def beside(who, command):
            extra.extend(["--extra", f"{work}:{who}:{command}"])

        for who, engine in {"halostream": "", **LIMITED.get(work, {})}.items():
            target = self.work / f"{work}-{who}.zarr"
            job = self.job(f"{work}-{who}", work, input=source, output=target, codec=codec, list=json.dumps(names))
            with job.open("a") as file:
                file.write(engine)
            # A finished job is not run again: its output goes first, in our own time, as that of the peers does in theirs.
            beside(who, f"sh -c 'rm -rf {target}; exec {' '.join(map(str, self.ours(job)))}'")
        read = shutil.which("zarrs_benchmark_read_sync", path=f"{self.o.zarrs_tools}:{os.environ['PATH']}")
        if work == "stacksum" and read:
            beside("zarrs-read-only", f"sh -c 'for m in {' '.join(names)}; do {read} $m || exit 1; done'")
        reencode = shutil.which("zarrs_reencode", path=f"{self.o.zarrs_tools}:{os.environ['PATH']}")
        weighs_codec = work == "gaussian" and codec != "none" and read and reencode
        if weighs_codec:
            # What the codec alone costs: the input decoded, and our output encoded (reencoded less decoded).
            made, again = self.work / f"{work}-halostream.zarr", self.work / "reencoded.zarr"
            beside("zarrs-read", f"{read} {source}")
            beside("zarrs-read-output", f"{read} {made}")
            beside("zarrs-reencode-output", f"sh -c 'rm -rf {again}; exec {reencode} {made} {again}'")
        self.say(f"## {work}, codec {codec}")
        out = subprocess.run(
            [sys.executable, PEERS / "run_all.py", "--inputs", inputs, "--work", self.work, "--workloads", work,
             "--repeat", str(self.o.repeat), "--threads", str(self.o.threads), "--skip", "cubed,cubed-norechunk,dask9,sitk-recursive,itk", *extra],
            stdout=subprocess.PIPE, text=True, check=True).stdout
        rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        self.say(f"memcpy {rows[0]['memcpy_gb_s']} GB/s, load {rows[0]['load']:.2f} at the start")
        self.say()
        rows = [r for r in rows if r.get("workload") == work]
        own = next((r for r in rows if r["peer"] == "halostream" and "wall_s" in r), None)
        head = ["who", "wall s", "least", "most", "wall without imports", "CPU s", "peak MB", "wall / ours", "CPU / ours"]
        table = []
        for r in rows:
            if "failed" in r:
                table.append([r["peer"], f"failed: {r['failed']}"] + [""] * 7)
                continue
            ratio = [r[k] / own[k] if own else float("nan") for k in ("wall_s", "cpu_s")]
            table.append([r["peer"], r["wall_s"], r["wall_min_s"], r["wall_max_s"], r["wall_noimport_s"], r["cpu_s"], r["peak_rss_mb"], *ratio])
        self.table(head, table)
        cpu = {r["peer"]: r["cpu_s"] for r in rows if "cpu_s" in r}
        if weighs_codec and own and "zarrs-reencode-output" in cpu:
            codec_s = cpu["zarrs-read"] + cpu["zarrs-reencode-output"] - cpu["zarrs-read-output"]
            self.say(f"zarrs' own codec cost, decoding the input and encoding the output: {codec_s:.3f} CPU s; ours beyond it: {own['cpu_s'] - codec_s:.3f}")
            self.say()
        reference = next((self.work / f"{work}-{p}.out" for p in ("skimage", "scipy", "threads") if (self.work / f"{work}-{p}.out").exists()), None)
        for who in ["halostream", *LIMITED.get(work, {})] if reference else []:
            out = subprocess.run([sys.executable, PEERS / "compare.py", reference, self.work / f"{work}-{who}.zarr"],
                                 stdout=subprocess.PIPE, text=True, check=True).stdout
            self.say(f"agreement of {who} with {reference.stem}: `{out.strip()}`")
        self.say()

    def touched(self):
        """Jobs of which fresh memory is a large part, each run after the same touch, and none with an output to remove."""
        read = shutil.which("zarrs_benchmark_read_sync", path=f"{self.o.zarrs_tools}:{os.environ['PATH']}")
        for work, codec in [(work, codec) for work in TOUCHED for codec in self.o.codecs.split(",")]:
            source = self.inputs(work, codec) / INPUTS[work]
            target = self.work / f"{work}-touched"
            names = [str(source / f"m{i}") for i in range(10)]
            job = self.job(f"{work}-touched", work, input=source, output=target.with_suffix(".zarr"), codec=codec, list=json.dumps(names))
            commands = {"halostream": self.ours(job)}
            for peer in TOUCHED[work]:
                out = target.with_suffix(f".{peer}")
                commands[peer] = [sys.executable, PEERS / f"{work}.py", "--peer", peer, "--input", source, "--output", out, "--threads", self.o.threads]
            if work == "stacksum" and read:
                commands["zarrs-read-only"] = ["sh", "-c", f"for m in {' '.join(names)}; do {read} $m || exit 1; done"]
            outputs = [target.with_suffix(s) for s in (".zarr", *(f".{peer}" for peer in TOUCHED[work]))]
            rows = self.medians(self.round_robin(commands, lambda _: touch(), outputs))
            own = rows[0]
            self.say(f"## {work}, codec {codec}, every run after 4 GiB were touched, to a new path")
            self.say()
            head = ["who", "wall s", "least", "most", "CPU s", "peak MB", "wall / ours", "CPU / ours"]
            self.table(head, [[*r, r[1] / own[1], r[4] / own[4]] for r in rows])
            for path in outputs:
                remove(path)

    def slc(self, rows, cols, images, codec="none"):
        path = self.work / f"slc-{rows}x{cols}x{images}-{codec}.zarr"
        if not path.exists():
            run([self.bin, "sample", "slc", path, "--shape", f"{rows},{cols},{images}", "--codec", codec, "--seed", "7", "--quiet"])
        return path

    def pairs(self, rows, cols, half=5):
        axis = lambda n: sum(min(n - 1, i + half) - max(0, i - half) + 1 for i in range(n))
        return axis(rows) * axis(cols)

    def ks(self):
        import numpy as np
        import zarr
        self.say("## KS test, 11x11, dist and p")
        rows = []
        for size, images in ((600, 17), (300, 60), (200, 100)):
            source, pairs = self.slc(size, size, images), self.pairs(size, size)
            target = self.work / "ks.zarr"
            for what, more in (("dist and p", ""), ("k", 'from = "ks_test.k"')):
                for codec in ("none", "zstd"):
                    job = self.job("ks", input=source, output=target, codec=codec, more=more)
                    found = self.round_robin({"ours": self.ours(job)}, outputs=[target])["ours"]
                    cpu = statistics.median(r["cpu_s"] for r in found)
                    wall = statistics.median(r["wall_s"] for r in found)
                    rows.append([f"halostream {what}, codec {codec}", f"{size}x{size}x{images}", wall, cpu, cpu / pairs * 1e9, max(r["peak_rss_mb"] for r in found)])
            data = self.work / "slc.npy"
            np.save(data, zarr.open_array(source, mode="r")[...])
            for case in ("moraine_dist_p", "table_sym"):
                out = subprocess.run([self.o.insar_python or sys.executable, PEERS / "insar_peer.py", "--data", data, "--rows", str(size), "--cols", str(size),
                                      "--threads", str(self.o.threads), "--reps", str(self.o.repeat), "--cases", case],
                                     stdout=subprocess.PIPE, text=True).stdout
                for line in filter(lambda l: l.startswith("{"), out.splitlines()):
                    r = json.loads(line)
                    if "median_cpu_s" in r:
                        rows.append([f"{case} (no files)", f"{size}x{size}x{images}", r["median_s"], r["median_cpu_s"], r["median_cpu_s"] / pairs * 1e9, r["peak_mb"]])
                    else:
                        rows.append([case, f"{size}x{size}x{images}", r.get("skipped", r.get("failed", "?"))[-60:], "", "", ""])
            data.unlink()
        self.table(["who", "stack", "wall s", "CPU s", "CPU ns per ordered pair", "peak MB"], rows)

    def insar(self):
        import re
        import numpy as np
        import zarr
        self.say("## InSAR chain, 11x11, alpha 0.05, the same points of at least 50 like pixels of the same stack: one thread, no files")
        bench = subprocess.run(["cargo", "bench", "--quiet", "--bench", "operator"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
        ours = lambda name, images: next(
            (float(m[1]) for m in (re.match(rf"{name}\s+N =\s*{images},.*?\s([0-9.]+) CPU", line) for line in bench.splitlines()) if m), float("nan"))
        mask = lambda images: next(
            (float(m[1]) for m in (re.match(rf"ks_test N =\s*{images},.*mask\s+simd\s+([0-9.]+) CPU", line) for line in bench.splitlines()) if m), float("nan"))
        points = lambda images: next(
            (m for m in (re.match(rf"coherence\s+N =\s*{images},.*?([0-9]+) points of ([0-9.]+) like", line) for line in bench.splitlines()) if m))
        rows, notes = [], []
        folder = self.work / "insar"
        for size, images in ((200, 17), (100, 60)):
            remove(folder)
            folder.mkdir()
            source, target = self.slc(size, size, images), folder / "out"
            kept = f'[outputs.coherence]\npath = "{target}-coherence.zarr"\nfrom = "coherence"\nif_exists = "overwrite"'
            run(self.ours(self.job("insar", input=source, output=target, codec="none", more=kept)))
            for name, path, array in (("slc", source, None), ("mask", f"{target}-mask.zarr", None), ("coherence", f"{target}-coherence.zarr", None),
                                      ("phase", f"{target}-emi.zarr", "phase"), ("quality", f"{target}-emi.zarr", "quality"), ("t", f"{target}-t.zarr", None)):
                found = zarr.open(path, mode="r")
                np.save(folder / f"{name}.npy", (found[array] if array else found)[...])
            peer = json.loads(run([self.o.insar_python or sys.executable, ROOT / ".ci" / "compare_insar.py", folder, "--repeat", self.o.repeat])["out"])
            if int(points(images)[1]) != peer["points"]:
                raise SystemExit(f"N = {images}: the bench has {points(images)[1]} points, moraine {peer['points']}")
            for what, own, other, unit in (
                ("mask (KS test and selection)", mask(images), peer["mask_ns"], "ns per ordered pair"), ("coherence", ours("coherence", images), peer["coherence_us"], "us per point"),
                ("EMI", ours("emi", images), peer["emi_us"], "us per point"), ("temporal coherence", ours("temporal_coherence", images), peer["t_us"], "us per point")):
                rows.append([what, images, own, other, other / own, unit])
            if "dolphin_us" in peer:
                own = sum(ours(name, images) for name in ("coherence", "emi", "temporal_coherence"))
                rows.append(["coherence, EMI and temporal coherence; dolphin for moraine", images, own, peer["dolphin_us"], peer["dolphin_us"] / own, "us per point"])
                notes.append(f"N = {images}: t of dolphin {peer['dolphin_t_apart_median']:.1e} apart in the median")
            notes.append(f"N = {images}: {peer['other_cells']} of {peer['pairs']} cells selected otherwise; {peer['points']} points of {peer['mean_shp']:.1f} like pixels (ours {points(images)[2]}): "
                         f"coherence at most {peer['coherence_apart']:.1e} apart, phases {peer['phase_apart_median']:.1e} rad in the median and {peer['phase_apart']:.1e} at most, "
                         f"t {peer['t_apart']:.1e} at most")
        self.table(["step", "images", "halostream CPU", "moraine CPU", "moraine / ours", "unit"], rows)
        for note in notes:
            self.say(f"agreement, {note}")
        self.say()
        self.say("## InSAR chain as one job, 600x600x17")
        rows = []
        source, target = self.slc(600, 600, 17), folder / "out"
        for codec in ("none", "zstd"):
            job = self.job("insar", input=source, output=target, codec=codec, more="")
            made = [f"{target}-{name}.zarr" for name in ("emi", "t", "mask")]
            rows += [[f"halostream, files to files, codec {codec}", *row[1:]] for row in self.medians(self.round_robin({"ours": self.ours(job)}, outputs=made))]
        np.save(folder / "slc.npy", zarr.open(source, mode="r")[...])
        out = run([self.o.insar_python or sys.executable, ROOT / ".ci" / "compare_insar.py", folder, "--chain", "--repeat", 1, "--threads", self.o.threads])
        peer = json.loads(out["out"])
        rows.append(["moraine, in memory", peer["wall_s"], "", "", peer["cpu_s"], out["peak_rss_mb"]])
        self.table(["who", "wall s", "least", "most", "CPU s", "peak MB"], rows)
        self.say(f"{peer['points']} points")
        self.say()
        remove(folder)

    def slc_job(self):
        self.say("## KS test of 2500x1834x17, dist and p (the documents: 39.1 s on 2 V100 with Dask, 8.2 s on one GPU)")
        rows = []
        for codec in ("none", "zstd"):
            source, target = self.slc(2500, 1834, 17, "zstd"), self.work / "ks.zarr"
            for sync in (False, True):
                job = self.job("ks", input=source, output=target, codec=codec, more='[engine]\nmemory = "1GiB"')
                found = self.round_robin({"ours": self.ours(job, no_sync=not sync)}, outputs=[target])["ours"]
                rows += [[f"codec {codec}, {'synced' if sync else 'not synced'}", *row[1:]] for row in self.medians({"ours": found})]
        self.table(["output", "wall s", "least", "most", "CPU s", "peak MB"], rows)

    def identity(self):
        self.say("## Identity, 1 GiB in chunks of 1 MiB, not synced")
        copier = self.copier(self.work)
        for codec in ("none", "zstd"):
            source = self.work / f"identity-in-{codec}.zarr"
            if not source.exists():
                run([self.bin, "sample", "volume", source, "--shape", "1024,512,512", "--chunks", "64,64,64", "--dtype", "float32",
                     "--codec", codec, "--quiet"])
            target = self.work / "identity-out"
            job = self.job("identity", input=source, output=target.with_suffix(".zarr"), codec=codec)
            commands = {"halostream": self.ours(job), "cp -r": ["cp", "-r", source, target.with_suffix(".cp")],
                        f"plain copier, {self.o.threads} threads": [copier, source, target.with_suffix(".plain"), self.o.threads]}
            reencode = shutil.which("zarrs_reencode", path=f"{self.o.zarrs_tools}:{os.environ['PATH']}")
            if reencode:
                commands["zarrs_reencode"] = [reencode, source, target.with_suffix(".re")]

            def before(_):
                for suffix in (".zarr", ".cp", ".re", ".plain"):
                    remove(target.with_suffix(suffix))
                touch()

            rows = self.medians(self.round_robin(commands, before))
            own = rows[0]
            self.say(f"codec {codec}")
            self.say()
            self.table(["who", "wall s", "least", "most", "CPU s", "peak MB", "wall / ours"], [[*r, r[1] / own[1]] for r in rows])
            before(None)

    def copier(self, folder):
        """Copies files as plainly as it can be done."""
        copier = folder / "copier"
        subprocess.run(["cc", "-O2", "-pthread", "-o", copier, ROOT / ".ci" / "copier.c"], check=True)
        return copier

    def overhead(self):
        """What a chunk costs beyond opening, reading and writing its files: ours less a plain copier of the same files, and by
        how much that grows from a small array to one of four times as many chunks."""
        shm = Path("/dev/shm")
        with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else self.work) as folder:
            folder = Path(folder)
            copier = self.copier(folder)
            repeat = max(self.o.repeat, 15)
            where = "memory file system" if shm.is_dir() else "disk"
            self.say(f"## Overhead by chunk beyond a plain copier of the same files ({self.o.threads} threads, {where}, {repeat} rounds)")
            table = []
            for size, chunks, small in (("1 MiB", "64,64,64", 256), ("32 KiB", "32,16,16", 2048)):
                side = [int(n) for n in chunks.split(",")]
                commands = {}
                for count in (small, 4 * small):
                    shape = [side[0] * count // 64, side[1] * 8, side[2] * 8]
                    source, target = folder / f"in-{count}.zarr", folder / f"out-{count}.zarr"
                    run([self.bin, "sample", "volume", source, "--shape", ",".join(map(str, shape)), "--chunks", chunks,
                         "--dtype", "float32", "--codec", "none", "--quiet"])
                    job = folder / f"{count}.toml"
                    job.write_text(JOBS["identity"].format(input=source, output=target, codec="none"))
                    commands[f"ours {count}"] = self.ours(job)
                    commands[f"files {count}"] = [copier, source, folder / f"copy-{count}", self.o.threads]
                found = {name: [] for name in commands}
                for n in range(repeat + 1):
                    for name, command in sorted(commands.items(), reverse=n % 2 == 0):
                        remove(folder / f"out-{name.split()[1]}.zarr")
                        remove(folder / f"copy-{name.split()[1]}")
                        figures = run(command)
                        if n:
                            found[name].append(figures)

                def slopes(who, what):
                    return [(large[what] - few[what]) * 1e6 / (3 * small) for few, large in zip(found[f"{who} {small}"], found[f"{who} {4 * small}"])]

                for what in ("wall_s", "cpu_s"):
                    ours, files = slopes("ours", what), slopes("files", what)
                    beyond = [a - b for a, b in zip(ours, files)]
                    low, middle, high = statistics.quantiles(beyond, n=4)
                    table.append([size, what.removesuffix("_s"), statistics.median(ours), statistics.median(files), middle, low, high])
                for path in folder.glob("*-*"):
                    remove(path)
            self.table(["chunk", "us a chunk", "ours", "files", "beyond, median", "quarter", "three quarters"], table)

    def convert(self):
        """Peers write the same chunks with the same codec."""
        self.say("## 400 TIFF frames of 768x1024 uint16 to one array, chunks of 40 frames, not synced")
        folder = self.work / "frames"
        if not (folder / "tiffs").exists():
            run([sys.executable, PEERS / "make_inputs.py", "--out", folder, "--only", "convert"])
        source = folder / "tiffs"
        for codec in ("none", "zstd"):
            target = self.work / "convert-out.zarr"
            job = self.job("convert", input=source, output=target, codec=codec)
            peer = lambda name: [sys.executable, PEERS / "convert.py", "--peer", name, "--codec", codec, "--input", source, "--output", target,
                                 "--threads", self.o.threads]
            commands = {"halostream": self.ours(job), **{name: peer(name) for name in ("threads", "tensorstore", "tifffile", "dask-tifffile")}}
            reencode = shutil.which("zarrs_reencode", path=f"{self.o.zarrs_tools}:{os.environ['PATH']}")
            if reencode and codec == "zstd":
                # What zarrs' own encoder takes for the same chunks, read from an array that is not packed.
                plain = self.work / "convert-plain.zarr"
                remove(plain)
                run(self.ours(self.job("convert-plain", "convert", input=source, output=plain, codec="none")))
                commands["zarrs_reencode"] = [reencode, "--bytes-to-bytes-codecs", '[{"name":"zstd","configuration":{"level":3,"checksum":false}}]',
                                              plain, target]
            rows = self.medians(self.round_robin(commands, outputs=[target]))
            own = rows[0]
            self.say(f"codec {codec}")
            self.say()
            self.table(["who", "wall s", "least", "most", "CPU s", "peak MB", "wall / ours", "CPU / ours"],
                       [[*r, r[1] / own[1], r[4] / own[4]] for r in rows])
            remove(target)

    def benches(self):
        for name in ("codec", "halo", "operator", "end_to_end"):
            self.say(f"## cargo bench --bench {name}")
            out = subprocess.run(["cargo", "bench", "--quiet", "--bench", name, "--", str(self.work)] if name == "end_to_end" else
                                 ["cargo", "bench", "--quiet", "--bench", name], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
            self.say(out.rstrip() if name == "end_to_end" else "```\n" + out.rstrip() + "\n```")
            self.say()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--work", required=True)
    p.add_argument("--bin", required=True)
    p.add_argument("--scale", choices=["usual", "small", "seed"], default="usual")
    p.add_argument("--append", action="store_true", help="add to today's file, as another part of one comparison")
    p.add_argument("--repeat", type=int, default=5)
    p.add_argument("--codecs", default="zstd,none", help="of the peer kit's inputs and outputs")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--zarrs-tools", default="")
    p.add_argument("--insar-python", default="", help="a Python with moraine, where it lives in an environment of its own")
    p.add_argument("--only", default="gaussian,tv20,stacksum,stackrow0,touched,ks,slc,insar,identity,overhead,convert,benches")
    o = p.parse_args()
    c = Compare(o)
    cpu = next((l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.processor())
    machine = f"{os.cpu_count()}x-{cpu}".replace(" ", "-").replace("(", "").replace(")", "").replace("/", "-")
    today = datetime.date.today().isoformat()
    version = subprocess.run([c.bin, "--version"], stdout=subprocess.PIPE, text=True).stdout.strip()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.strip()
    if not o.append:
        c.say(f"# {today}, {os.cpu_count()} cores {cpu}")
        c.say()
    c.say(f"{version} at {commit}; load {os.getloadavg()[0]:.2f} at the start; medians of {o.repeat} interleaved fresh processes; inputs in the page cache.")
    c.say()
    wanted = o.only.split(",")
    wants = lambda n: n in wanted or "touched" in wanted and n in TOUCHED
    for name, codec in [(n, codec) for n in INPUTS if wants(n) for codec in o.codecs.split(",")]:
        folder = c.inputs(name, codec)
        if not (folder / INPUTS[name]).exists():
            kind, scale = INPUTS[name].removesuffix(".zarr"), folder.name.split("-")[0]
            run([sys.executable, PEERS / "make_inputs.py", "--out", folder, "--scale", scale, "--codec", codec, "--raw", "--only", kind])
    for name in wanted:
        {"touched": c.touched, "ks": c.ks, "slc": c.slc_job, "insar": c.insar, "identity": c.identity, "overhead": c.overhead, "convert": c.convert, "benches": c.benches}.get(name, lambda: c.workload(name))()
    c.say(f"load {os.getloadavg()[0]:.2f} at the end")
    target = ROOT / "benches" / "results" / f"{today}-{machine}.md"
    target.parent.mkdir(exist_ok=True)
    with target.open("a" if o.append else "w") as file:
        file.write("\n".join(c.lines) + "\n")
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
