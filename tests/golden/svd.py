"""Golden values of `svd`: numpy's full decomposition of whole, standardised matrices. Writes svd.json beside this file.

    python3 tests/golden/svd.py           (made with numpy 2.4.6)

A case is a step as a job file writes it, the input's name, and per output its dtype, shape and bytes (little endian, C
order) in hex. Values, vectors and the residual are float64 here, whatever the operator's dtype. The largest component of each
vector along the shorter axis (along the columns where rows are centred) is positive.
"""
import json
import pathlib

import numpy as np

rng = np.random.default_rng(23)


def falling(rows, columns, by=0.6):
    """A matrix whose singular values are far from each other."""
    n = min(rows, columns)
    u, v = (np.linalg.qr(rng.normal(size=(m, n)))[0] for m in (rows, columns))
    return (u * (40 * by ** np.arange(n))) @ v.T


def genotypes(variants, samples, missing):
    """Three populations; some variants are the same for all, one has no call at all."""
    population = rng.integers(0, 3, samples)
    frequency = np.clip(rng.uniform(0.1, 0.9, (variants, 1)) + rng.normal(size=(variants, 3)) * 0.25, 0.02, 0.98)
    g = rng.binomial(2, frequency[:, population]).astype("u1")
    g[3], g[7] = 0, 2
    g[rng.random(g.shape) < missing] = 3
    g[11] = 3
    return g


real = falling(60, 14)
inputs = {
    "f64": real,
    "f32": real.astype("f4"),
    "f16": real.astype("f2"),
    "i32": np.rint(real * 100).astype("i4"),
    "i16": np.rint(real * 50).astype("i2"),
    "wide": falling(13, 90),
    "wide16": np.rint(falling(13, 90) * 50).astype("i2"),
    "long": falling(300, 36, 0.8),
    "long32": falling(300, 36, 0.8).astype("f4"),
    "calls": genotypes(400, 45, 0.03),
    "counts": np.minimum(genotypes(300, 20, 0), 2),
    "far": 1e-30 * falling(50, 12).astype("f4"),
    "large": 1e30 * falling(50, 12).astype("f4"),
}
holes = real.copy()
holes[rng.random(holes.shape) < 0.1] = np.nan
inputs["holes"] = holes
cases = []


def stored(x):
    x = np.asarray(x)
    return {"dtype": x.dtype.name, "shape": list(x.shape), "values": np.ascontiguousarray(x).tobytes().hex()}


def standard(x, center=None, scale="none", missing=None, missing_as="mean"):
    x = x.astype("f8")
    center = scale != "none" if center is None else center
    if missing is not None:
        gone = np.isnan(x) if np.isnan(missing) else x == missing
        if missing_as == "zero":
            x[gone] = 0
        else:
            present = (~gone).sum(1, keepdims=True)
            mean = np.where(gone, 0, x).sum(1, keepdims=True) / np.maximum(present, 1)
            x = np.where(gone, mean, x)
    mean = x.mean(1, keepdims=True)
    if center:
        x = x - mean
    if scale != "none":
        p = mean / 2
        variance = p * (1 - p) * (2 if scale == "hwe" else 1)
        # What rounding leaves of a row of one value is nothing.
        x = np.where(variance > 1e-12, x / np.sqrt(np.where(variance > 1e-12, variance, 1)), 0)
    return x, center or missing is not None and missing_as == "mean"


def case(source, k, outputs="usv", **params):
    keys = ("center", "scale", "missing", "missing_as")
    x, by_row = standard(inputs[source], **{key: params[key] for key in keys if key in params})
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    u, s, v = u[:, :k], s[:k], vt.T[:, :k]
    side = u if x.shape[0] < x.shape[1] and not by_row else v
    sign = np.sign(side[np.abs(side).argmax(0), np.arange(k)])
    found = {"u": u * sign, "s": s, "v": v * sign}
    found = {name: stored(found[name]) for name in outputs}
    found["residual"] = stored(np.float64(np.sqrt(max(0, 1 - (s ** 2).sum() / (x ** 2).sum()))))
    params = {key: "nan" if value != value else value for key, value in params.items()}
    cases.append({"op": "svd", "input": source, "parameters": {"k": k, **params}, "outputs": found})


for source in ("f64", "f32", "f16", "i32", "i16", "wide", "wide16", "far", "large"):
    case(source, 4)
for source in ("f64", "f32", "wide"):
    case(source, 3, center=True)
case("f64", 14, n_power_iter=1)
case("f64", 2, n_oversamples=0, n_power_iter=40)
case("wide", 5, n_oversamples=2, n_power_iter=20)
for source in ("long", "long32"):
    case(source, 5, n_power_iter=25)
    case(source, 6, n_power_iter=200, tol=1e-7, seed=9)
for scale in ("patterson", "hwe"):
    case("calls", 2, scale=scale, missing=3, n_power_iter=60)
    case("calls", 2, scale=scale, missing=3, missing_as="zero", n_power_iter=60)
    case("counts", 2, scale=scale, n_power_iter=60)
case("calls", 2, n_power_iter=60)
case("calls", 2, missing=3, n_power_iter=60)
case("calls", 2, missing=3, missing_as="zero", n_power_iter=60)
case("calls", 2, missing=3, center=True, n_power_iter=60)
case("holes", 3, missing=float("nan"), n_power_iter=30)
case("holes", 3, missing=float("nan"), missing_as="zero", n_power_iter=30)

here = pathlib.Path(__file__).parent
golden = {"inputs": {name: stored(x) for name, x in inputs.items()}, "cases": cases}
(here / "svd.json").write_text(json.dumps(golden))
