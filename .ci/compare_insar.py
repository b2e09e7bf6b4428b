"""moraine and dolphin on the arrays that halostream read and wrote: CPU time per pair and point, wall time of the chain, agreement.

  python compare_insar.py FOLDER --threads 1 --repeat 5

FOLDER holds slc.npy and what our fused job wrote of it (mask, coherence, phase, quality, t as .npy). One JSON line. `chain`
is the time from the stack to t of every pixel with at least 50 like neighbours, without files. dolphin, where it is installed,
links phases and finds t of all pixels at once, few neighbours or many: its time is that over their number."""
import argparse
import json
import os
import time

p = argparse.ArgumentParser()
p.add_argument("folder")
p.add_argument("--threads", type=int, default=1)
p.add_argument("--repeat", type=int, default=5)
p.add_argument("--chain", action="store_true")
o = p.parse_args()
os.environ["NUMBA_NUM_THREADS"] = str(o.threads)
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["JAX_PLATFORMS"] = "cpu"
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: o.threads])
import moraine
import numpy as np

HALF, ALPHA, LEAST = 5, 0.05, 50


def amplitude(z):
    # Rounded once, as both sides do on files.
    return np.sqrt(z.real.astype("f8") ** 2 + z.imag.astype("f8") ** 2).astype("f4")


def median(work):
    found = work()
    cpu, wall = [], []
    for _ in range(o.repeat):
        c, w = time.process_time(), time.perf_counter()
        found = work()
        cpu.append(time.process_time() - c)
        wall.append(time.perf_counter() - w)
    return found, sorted(cpu)[len(cpu) // 2], sorted(wall)[len(wall) // 2]


def dolphin(z, like):
    """Coherence, EMI and t of every pixel: temporal coherence, CPU seconds."""
    import sys
    from unittest.mock import MagicMock

    try:
        import osgeo  # noqa: F401
    except ImportError:
        # Only its files need GDAL.
        for name in ("", ".gdal", ".gdal_array", ".gdalconst", ".osr", ".ogr", ".gdalnumeric"):
            sys.modules["osgeo" + name] = MagicMock(__version__="3.9.0")
    from dolphin._types import HalfWindow
    from dolphin.phase_link import run_phase_linking

    stack = np.ascontiguousarray(np.moveaxis(z, -1, 0))
    link = lambda: run_phase_linking(stack, HalfWindow(HALF, HALF), neighbor_arrays=like, compute_crlb=False)
    found, cpu, _ = median(link)
    return np.asarray(found.temp_coh), cpu


def load(name):
    return np.load(f"{o.folder}/{name}.npy")


z = load("slc")
amplitudes = amplitude(z)
if o.chain:
    def chain():
        like = moraine.ks_test(amplitudes, HALF, HALF) >= ALPHA
        like[:, :, HALF, HALF] = True
        index = np.argwhere(like.sum((2, 3)) >= LEAST).astype(np.int32)
        for part in range(0, len(index), 1000):
            at = index[part : part + 1000]
            coherence = moraine.emperical_co_pc(z, at, np.ascontiguousarray(like[at[:, 0], at[:, 1]]))
            phase, _ = moraine.emi(coherence)
            moraine.ds_temp_coh(coherence, phase)
        return len(index)

    points, cpu, wall = median(chain)
    print(json.dumps(dict(points=points, cpu_s=cpu, wall_s=wall)))
    raise SystemExit

rows, cols, images = z.shape
axis = lambda n: sum(min(n - 1, i + HALF) - max(0, i - HALF) + 1 for i in range(n))
pairs = axis(rows) * axis(cols)
p_values, ks_cpu, _ = median(lambda: moraine.ks_test(amplitudes, HALF, HALF))
cells = (2 * HALF + 1) ** 2
mask = np.unpackbits(load("mask"), axis=-1, count=cells, bitorder="little").reshape(rows, cols, 2 * HALF + 1, -1).astype(bool)
like = p_values >= ALPHA
# moraine gives 0 for a distance of 0.
other = int(((like != mask) & ~(p_values == 0)).sum())
index = np.argwhere(mask.sum((2, 3)) >= LEAST).astype(np.int32)
chosen = np.ascontiguousarray(mask[index[:, 0], index[:, 1]])
coherence, coherence_cpu, _ = median(lambda: moraine.emperical_co_pc(z, index, chosen))
(phase, quality), emi_cpu, _ = median(lambda: moraine.emi(coherence))
t, t_cpu, _ = median(lambda: moraine.ds_temp_coh(coherence, phase))
at = (index[:, 0], index[:, 1])
turned = np.abs(np.angle(phase * load("phase")[at].conj()))
us = lambda seconds: seconds / len(index) * 1e6
try:
    dolphin_t, dolphin_cpu = dolphin(z, mask)
    other_chain = dict(dolphin_us=dolphin_cpu / (rows * cols) * 1e6, dolphin_t_apart_median=float(np.median(np.abs(dolphin_t[at] - load("t")[at]))))
except ImportError as e:
    other_chain = dict(dolphin_missing=str(e))
print(json.dumps(dict(
    points=len(index), mean_shp=float(chosen.sum((1, 2)).mean()), mask_ns=ks_cpu / pairs * 1e9, coherence_us=us(coherence_cpu),
    emi_us=us(emi_cpu), t_us=us(t_cpu), other_cells=other, pairs=pairs,
    coherence_apart=float(np.abs(coherence - load("coherence")[at]).max()),
    phase_apart_median=float(np.median(turned)), phase_apart=float(turned.max()),
    t_apart=float(np.abs(t - load("t")[at]).max()), **other_chain)))
