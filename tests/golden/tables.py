"""Golden values of the operators on tables: scikit-learn on whole arrays. Writes tables.json beside this file.

    python3 tests/golden/tables.py           (made with scikit-learn 1.9.1, numpy 2.4.6)

A case is a step as a job file writes it, the input's name, and per output its dtype, shape and bytes (little endian, C
order) in hex.
"""
import json
import pathlib
import warnings

import numpy as np
from sklearn.cluster import KMeans
from sklearn.preprocessing import MinMaxScaler, RobustScaler, StandardScaler

warnings.simplefilter("ignore")
rng = np.random.default_rng(11)


def table(dtype, rows, features):
    """Features of different places and widths, one of them constant, one nearly so."""
    x = rng.normal(size=(rows, features)) * 10.0 ** rng.integers(-2, 3, features) + rng.integers(-50, 50, features)
    x[:, 1] = 7.1
    x[:, 2] = 1e9 + 1e-7 * rng.normal(size=rows)
    return x.astype(dtype)


holes = table("f8", 61, 6)
holes[rng.random(holes.shape) < 0.2] = np.nan
holes[:, 4] = np.nan
groups = np.concatenate([rng.normal(size=(n, 5)) * 0.8 + c for n, c in ((70, 0.0), (50, 3.0), (40, [5, -5, 0, 0, 2]))])
inputs = {
    "f64": table("f8", 83, 6),
    "f32": table("f4", 83, 6),
    "i16": (table("f8", 47, 5).clip(-1e4, 1e4)).astype("i2"),
    "holes": holes,
    "thin": table("f8", 1, 4),
    "groups": rng.permutation(groups),
    "groups32": rng.permutation(groups).astype("f4"),
    "far": rng.permutation(groups) + 1e4,
    "twins": rng.permutation(groups)[np.r_[0, 0, 1:160]],
}
SCALERS = {
    "standard_scaler": (StandardScaler, {"mean": "mean_", "var": "var_", "scale": "scale_"}),
    "min_max_scaler": (MinMaxScaler, {"data_min": "data_min_", "data_max": "data_max_", "scale": "scale_", "min": "min_"}),
    "robust_scaler": (RobustScaler, {"center": "center_", "scale": "scale_"}),
}
cases = []


def stored(x):
    x = np.asarray(x)
    return {"dtype": x.dtype.name, "shape": list(x.shape), "values": np.ascontiguousarray(x).tobytes().hex()}


def scaler(op, source, **params):
    make, names = SCALERS[op]
    fitted = make(**{k: tuple(v) if isinstance(v, list) else v for k, v in params.items()})
    outputs = {"scaled": stored(fitted.fit_transform(inputs[source]))}
    for name, attribute in names.items():
        value = getattr(fitted, attribute)
        if value is not None:
            outputs[name] = stored(np.asarray(value, "f8"))
    cases.append({"op": op, "input": source, "parameters": params, "outputs": outputs})


def kmeans(source, rows, **params):
    x = inputs[source]
    found = KMeans(len(rows), init=x[rows], n_init=1, **params).fit(x)
    outputs = {
        "labels": stored(found.labels_.astype("i4")),
        "centers": stored(found.cluster_centers_),
        "inertia": stored(np.float64(found.inertia_)),
        "n_iter": stored(np.int32(found.n_iter_)),
    }
    parameters = {"n_clusters": len(rows), "init_rows": rows, **params}
    cases.append({"op": "kmeans", "input": source, "parameters": parameters, "outputs": outputs})


for source in ("f64", "f32", "i16", "holes", "thin"):
    scaler("standard_scaler", source)
    scaler("min_max_scaler", source)
    scaler("robust_scaler", source)
scaler("standard_scaler", "f64", with_mean=False)
scaler("standard_scaler", "holes", with_std=False)
scaler("min_max_scaler", "f64", feature_range=[-2, 3])
scaler("min_max_scaler", "holes", feature_range=[0, 0.1], clip=True)
scaler("robust_scaler", "f64", with_centering=False)
scaler("robust_scaler", "f64", with_scaling=False)
scaler("robust_scaler", "holes", quantile_range=[10, 95])
scaler("robust_scaler", "f64", unit_variance=True)
scaler("robust_scaler", "f32", quantile_range=[5, 80], unit_variance=True)

for source in ("groups", "groups32", "far"):
    kmeans(source, [0, 1, 2], tol=0)
    kmeans(source, [5, 11, 17, 23, 40, 71, 99], tol=0)
    kmeans(source, [3, 30, 60, 90], tol=1e-2)
    kmeans(source, [2, 1, 0, 4, 3], max_iter=2, tol=0)
kmeans("groups", [12], tol=0)
# Rows that are equal: a cluster that nobody is nearest to.
kmeans("twins", [0, 1, 50, 100], tol=0)
kmeans("twins", [1, 0], tol=0)

here = pathlib.Path(__file__).parent
golden = {"inputs": {name: stored(x) for name, x in inputs.items()}, "cases": cases}
(here / "tables.json").write_text(json.dumps(golden))
