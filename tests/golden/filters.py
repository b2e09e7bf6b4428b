"""Golden values of the filters: scipy.ndimage on whole arrays. Writes filters.json beside this file.

    python3 tests/golden/filters.py          (made with scipy 1.17.1, numpy 2.4.6)

A case is a step as a job file writes it, the input's name, and the result's bytes (little endian, C order) in hex.
"""
import json
import pathlib

import numpy as np
import scipy.ndimage as nd

MODE = {"reflect": "reflect", "mirror": "mirror", "nearest": "nearest", "periodic": "wrap"}
rng = np.random.default_rng(7)


def volume(dtype, *shape):
    x = rng.normal(size=shape) * 40 + 100
    return x.astype(dtype) if np.dtype(dtype).kind == "f" else np.clip(x, 0, 250).astype(dtype)


inputs = {
    "f32": volume("f4", 6, 7, 5),
    "f64": volume("f8", 6, 7, 5),
    "u8": volume("u1", 6, 7, 5),
    "i16": (volume("f8", 6, 7, 5) - 100).astype("i2"),
    "u16_2d": volume("u2", 9, 11),
    "f64_2d": volume("f8", 9, 11),
    "f32_1d": volume("f4", 23),
    "i32_1d": (volume("f8", 17) * 1000).astype("i4"),
    "f64_4d": volume("f8", 3, 4, 2, 5),
    "thin": volume("f8", 1, 2, 8),
    "bool_2d": rng.random((9, 11)) < 0.4,
}
cases = []


def case(op, source, boundary="reflect", **params):
    x = inputs[source]
    kwargs = dict(params)
    for key in ("footprint", "weights"):
        if key in kwargs:
            kwargs[key] = np.array(kwargs[key], dtype=bool if key == "footprint" else float)
    if "origin" in kwargs and isinstance(kwargs["origin"], list):
        kwargs["origin"] = tuple(kwargs["origin"])
    modes = boundary if isinstance(boundary, list) else [boundary]
    numbers = [m for m in modes if not isinstance(m, str)]
    names = [MODE[m] if isinstance(m, str) else "constant" for m in modes]
    kwargs["mode"] = names if isinstance(boundary, list) else names[0]
    if numbers:
        kwargs["cval"] = numbers[0]
    y = getattr(nd, op)(x, **kwargs)
    assert y.dtype == x.dtype and y.shape == x.shape, (op, y.dtype)
    cases.append({"op": op, "input": source, "boundary": boundary, "params": params, "want": np.ascontiguousarray(y).tobytes().hex()})


EVERY = ["reflect", "mirror", "nearest", "periodic", 25]
for boundary in EVERY:
    case("gaussian_filter", "f32", boundary, sigma=1.3)
    case("gaussian_filter", "f64", boundary, sigma=[0.7, 0, 2.0], order=[1, 0, 2])
    case("gaussian_filter", "thin", boundary, sigma=2.0, truncate=3.0)
    case("gaussian_filter", "f64_2d", boundary, sigma=1.0, order=1)
    case("uniform_filter", "f64", boundary, size=[4, 3, 1])
    case("uniform_filter", "f32_1d", boundary, size=13)
    case("sobel", "f64", boundary, axis=1)
    case("laplace", "f64", boundary)
    case("gaussian_laplace", "f64_2d", boundary, sigma=[1.0, 0.8])
    case("gaussian_gradient_magnitude", "f64_2d", boundary, sigma=0.9)
    case("correlate", "f64_2d", boundary, weights=[[1, 2, 0.5], [-1, 0, 3]])
    case("convolve", "f64_2d", boundary, weights=[[1, 2, 0.5, 4], [-1, 0, 3, 1]], origin=[0, 1])
    case("median_filter", "f32", boundary, size=3)
    case("median_filter", "u8", boundary, size=[1, 4, 3])
    case("minimum_filter", "i16", boundary, size=[2, 5, 1])
    case("maximum_filter", "u16_2d", boundary, footprint=[[0, 1, 0], [1, 1, 1], [0, 1, 0]])
    case("grey_opening", "u8", boundary, size=[2, 4, 3])
    case("grey_closing", "u16_2d", boundary, footprint=[[0, 1, 1, 0], [1, 1, 1, 1]])
    case("white_tophat", "f32", boundary, size=[3, 2, 1])
    case("black_tophat", "i16", boundary, size=3)
    case("morphological_gradient", "u8", boundary, size=[3, 1, 4])
case("gaussian_filter", "u8", sigma=1.5)
case("gaussian_filter", "i16", "nearest", sigma=1.5, order=1)
case("gaussian_filter", "i32_1d", "mirror", sigma=3.0)
case("gaussian_filter", "f64_4d", ["reflect", "periodic", "nearest", "mirror"], sigma=[1.0, 0.8, 2.5, 0.6], order=[0, 1, 0, 3])
case("gaussian_filter", "f64_2d", sigma=2.0, radius=[2, 5])
case("gaussian_filter", "f64", sigma=0.0)
case("uniform_filter", "u8", size=5)
case("uniform_filter", "i16", "nearest", size=[3, 2, 4])
case("uniform_filter", "f64_2d", size=4, origin=[1, -2])
case("uniform_filter", "f64_4d", ["periodic", 3.5, "mirror", "reflect"], size=3)
case("sobel", "i16", axis=-1)
case("sobel", "u8", axis=0)
case("prewitt", "f32", "mirror", axis=0)
case("prewitt", "f64_2d", 4.5)
case("laplace", "i16", "nearest")
case("laplace", "u8")
case("gaussian_laplace", "f32", "nearest", sigma=1.1, truncate=3.0)
case("gaussian_gradient_magnitude", "f32", "mirror", sigma=1.0)
case("correlate", "i16", "mirror", weights=[[[0.5, 1, 2]], [[1, -1, 0]]], origin=[-1, 0, 1])
case("correlate", "u16_2d", "nearest", weights=[[0.1, 0.2], [0.3, 0.4]])
case("convolve", "f32_1d", "reflect", weights=[1, 2, 3, 4])
case("convolve", "f64_4d", "periodic", weights=[[[[1, 2], [3, 4]]], [[[0, 1], [1, 0]]]])
case("median_filter", "f32_1d", size=5)
case("median_filter", "u16_2d", "mirror", size=[5, 4], origin=[1, -2])
case("median_filter", "f64_2d", footprint=[[1, 0, 1], [0, 1, 0]])
case("median_filter", "u8", size=[5, 9, 7])
case("median_filter", "u16_2d", size=17)
case("median_filter", "i16", "nearest", size=7)
case("percentile_filter", "u8", percentile=20, size=3)
case("percentile_filter", "f64_2d", "nearest", percentile=-10.5, size=[3, 4])
case("percentile_filter", "f64_2d", percentile=100, size=3)
case("rank_filter", "i16", rank=5, size=[3, 2, 2])
case("rank_filter", "f32_1d", "mirror", rank=-2, size=6)
case("rank_filter", "f64_2d", rank=0, footprint=[[1, 1, 0]])
case("rank_filter", "bool_2d", rank=3, size=3)
case("minimum_filter", "f64_2d", "mirror", size=[4, 3], origin=[-2, 1])
case("maximum_filter", "bool_2d", size=2)
case("maximum_filter", "f64_4d", ["reflect", -20.5, "periodic", "nearest"], size=[2, 3, 4, 3])
case("minimum_filter", "f32_1d", footprint=[1, 1, 0, 1])
case("grey_erosion", "u8", size=[4, 3, 2])
case("grey_erosion", "f64_2d", "nearest", size=[4, 2], origin=[1, 0])
case("grey_dilation", "u8", size=[4, 3, 2])
case("grey_dilation", "f64_2d", "nearest", size=[4, 2], origin=[1, 0])
case("grey_dilation", "f64_2d", "mirror", footprint=[[0, 1, 1], [1, 1, 0]])
case("grey_opening", "f64_2d", "mirror", size=[4, 5], origin=[-1, 2])
case("grey_opening", "thin", "reflect", size=[3, 5, 4])
case("grey_closing", "thin", "nearest", size=[3, 6, 4])
case("white_tophat", "bool_2d", size=3)
case("black_tophat", "bool_2d", size=[2, 3])
case("morphological_gradient", "f64_2d", "nearest", footprint=[[0, 1, 0, 1], [1, 1, 1, 1]])

# Three whole-array calls in a row, each with a boundary of its own.
x = inputs["f32"]
y = nd.gaussian_filter(x, [1.5, 0.8, 1.0], mode="mirror")
y = nd.median_filter(y, size=[3, 1, 4], mode="wrap")
y = nd.sobel(y, axis=2, mode="constant", cval=50)
chain = {"input": "f32", "want": y.tobytes().hex()}

described = {n: {"dtype": str(x.dtype), "shape": x.shape, "values": x.tobytes().hex()} for n, x in inputs.items()}
text = json.dumps({"inputs": described, "cases": cases, "chain": chain}).replace('{"op"', '\n{"op"')
pathlib.Path(__file__).with_suffix(".json").write_text(text + "\n")
