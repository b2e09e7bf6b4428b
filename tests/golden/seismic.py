"""Golden values of the seismic attributes: numpy and scipy on whole arrays. Writes seismic.json beside this file.

    python3 tests/golden/seismic.py          (made with scipy 1.17.1, numpy 2.4.6)

A case is a step as a job file writes it, the input's name, and the bytes of each output (little endian, C order) in hex. Windows
are taken from padded arrays, one by one; the analytic signal is scipy.signal.hilbert's.
"""
import json
import pathlib

import numpy as np
import scipy.ndimage as nd
import scipy.signal as ss

rng = np.random.default_rng(12)


def cube(dtype, *shape):
    x = np.cumsum(rng.normal(size=shape), axis=-1)
    x -= nd.uniform_filter1d(x, 9, axis=-1)
    return (x * 1000).astype(dtype)


inputs = {
    "f32": cube("f4", 3, 4, 24),  # an even number of samples
    "f64": cube("f8", 2, 3, 35),  # an odd one
    "i16": cube("i2", 3, 4, 18),
    "i32": cube("i4", 2, 3, 17),
    "u8": np.clip(cube("f8", 2, 3, 26) / 20 + 100, 0, 250).astype("u1"),
    "line": cube("f8", 2, 134),  # twice a large prime
    "prime": cube("f4", 2, 67),
    "samples_first": np.ascontiguousarray(cube("f4", 5, 46).T),
    "samples_between": np.ascontiguousarray(cube("f8", 3, 2, 22).transpose(0, 2, 1)),
    "trace": cube("f8", 24),
    "short": cube("f8", 3, 2) + 1e4,
    "4d": cube("f4", 2, 3, 2, 9),
}
inputs["f32"][2, 2] = 0  # a dead trace
inputs["f32"][:2, :, :9] /= 1e4  # a mute; of zeros, rounding would decide which way the phase turns
PAD = {"reflect": "symmetric", "mirror": "reflect", "nearest": "edge", "periodic": "wrap"}
SCIPY = {"reflect": "reflect", "mirror": "mirror", "nearest": "nearest", "periodic": "wrap"}
cases = []


def analytic(x, axis):
    return ss.hilbert(x.astype("f8"), axis=axis)


def frequency(x, axis, dt):
    return np.gradient(np.unwrap(np.angle(analytic(x, axis)), axis=axis), axis=axis) / (2 * np.pi * dt)


def windows(x, lengths, boundary):
    """The windows of all cells, their axes behind the array's."""
    pad = [(n // 2, n - 1 - n // 2) for n in lengths]
    how = {"mode": PAD[boundary]} if isinstance(boundary, str) else {"mode": "constant", "constant_values": boundary}
    return np.lib.stride_tricks.sliding_window_view(np.pad(x.astype("f8"), pad, **how), lengths)


def envelope(x, boundary, axis=-1):
    return np.abs(analytic(x, axis))


def instantaneous_phase(x, boundary, axis=-1):
    return np.angle(analytic(x, axis))


def instantaneous_frequency(x, boundary, dt, axis=-1):
    return frequency(x, axis, dt)


def sweetness(x, boundary, axis=-1, dt=0.004, window=11, min_frequency=1.0):
    lengths = [1] * x.ndim
    lengths[axis] = window
    mean = windows(frequency(x, axis, dt), lengths, "nearest").mean(axis=tuple(range(x.ndim, 2 * x.ndim)))
    return envelope(x, None, axis) / np.sqrt(np.maximum(min_frequency, mean))


def rms_amplitude(x, boundary, window, axis=-1):
    lengths = [1] * x.ndim
    lengths[axis] = window
    return np.sqrt((windows(x, lengths, boundary) ** 2).mean(axis=tuple(range(x.ndim, 2 * x.ndim))))


def semblance_coherence(x, boundary, aperture, axis=-1):
    w = windows(x, aperture, boundary)
    samples = x.ndim + axis % x.ndim
    traces = tuple(a for a in range(x.ndim, 2 * x.ndim) if a != samples)
    num = w.sum(axis=traces, keepdims=True) ** 2
    den = (w ** 2).sum(axis=traces, keepdims=True) * np.prod([w.shape[a] for a in traces])
    num, den = (v.sum(axis=tuple(range(x.ndim, 2 * x.ndim))) for v in (num, den))
    return np.divide(num, den, out=np.zeros_like(num), where=den > 0)


def gst_dip(x, boundary, axis=-1, spatial_axis=None, gradient_sigma=1.0, sigma=(2.0, 4.0), truncate=4.0):
    """The dip along an axis of traces, or a list with that along each of two."""
    if spatial_axis is None:
        spatial_axis = 1 - axis % 2
    axes = [*(spatial_axis if isinstance(spatial_axis, list) else [spatial_axis]), axis]
    how = {"mode": SCIPY[boundary], "truncate": truncate}
    g = [nd.gaussian_filter1d(x.astype("f8"), gradient_sigma, axis=a, order=1, **how) for a in axes]
    sx, sz = sigma if isinstance(sigma, (list, tuple)) else (sigma, sigma)

    def smooth(j):
        for a in axes:
            j = nd.gaussian_filter1d(j, sz if a == axis else sx, axis=a, **how)
        return j

    if len(axes) == 2:
        gx, gz = g
        return 0.5 * np.arctan2(2 * smooth(gx * gz), smooth(gz * gz) - smooth(gx * gx))
    tensor = np.stack([np.stack([smooth(a * b) for b in g], axis=-1) for a in g], axis=-1)
    normal = np.linalg.eigh(tensor)[1][..., -1]
    return [np.arctan(normal[..., n] / normal[..., 2]) for n in range(2)]


def case(op, source, boundary=None, **params):
    x = inputs[source]
    results = globals()[op](x, boundary if boundary is not None else "nearest", **params)
    want = []
    for y in results if isinstance(results, list) else [results]:
        y = y.astype("f4" if x.dtype.itemsize < 4 or x.dtype == np.float32 else "f8")
        assert y.shape == x.shape, op
        want.append(np.ascontiguousarray(y).tobytes().hex())
    cases.append({"op": op, "input": source, "boundary": boundary, "params": params, "want": want})


for source, axis in [("f32", -1), ("f64", 2), ("i16", -1), ("i32", -1), ("u8", -1), ("line", 1), ("prime", -1),
                     ("samples_first", 0), ("samples_between", 1), ("trace", 0), ("short", -1), ("4d", 3)]:
    case("envelope", source, axis=axis)
    case("instantaneous_phase", source, axis=axis)
    case("instantaneous_frequency", source, dt=0.002, axis=axis)
    case("sweetness", source, axis=axis)
    case("rms_amplitude", source, axis=axis, window=5)
case("sweetness", "f64", dt=0.002, window=4, min_frequency=12.5)
case("sweetness", "samples_first", axis=0, window=61)
for boundary in ["reflect", "mirror", "nearest", "periodic", 25]:
    case("rms_amplitude", "f32", boundary, window=9)
    case("rms_amplitude", "i16", boundary, window=12)
    case("rms_amplitude", "samples_between", boundary, window=21, axis=1)
    case("rms_amplitude", "short", boundary, window=7)
    case("semblance_coherence", "f32", boundary, aperture=[3, 3, 9])
    case("semblance_coherence", "i16", boundary, aperture=[2, 5, 4])
    case("semblance_coherence", "samples_first", boundary, aperture=[11, 3], axis=0)
    case("semblance_coherence", "samples_between", boundary, aperture=[3, 7, 12], axis=1)
case("semblance_coherence", "f64", aperture=[1, 1, 5])
case("semblance_coherence", "line", aperture=[5, 9])
case("semblance_coherence", "4d", aperture=[2, 3, 1, 5])
case("semblance_coherence", "f64", aperture=[3, 3, 1])
for boundary in ["reflect", "mirror", "nearest", "periodic"]:
    case("gst_dip", "f32", boundary, spatial_axis=1)
    case("gst_dip", "f64", boundary, spatial_axis=0, sigma=1.5)
    case("gst_dip", "samples_first", boundary, axis=0)
    case("gst_dip", "samples_between", boundary, axis=1, spatial_axis=0, gradient_sigma=0.7, sigma=[1.0, 2.5], truncate=3.0)
case("gst_dip", "i16", spatial_axis=0)
case("gst_dip", "line")
case("gst_dip", "4d", spatial_axis=1)
case("gst_dip", "f64", spatial_axis=[0, 1])
case("gst_dip", "i16", "mirror", spatial_axis=[1, 0], sigma=1.0)
case("gst_dip", "samples_between", "periodic", axis=1, spatial_axis=[0, 2], sigma=[1.5, 2.0])
case("gst_dip", "4d", "reflect", spatial_axis=[0, 1], truncate=3.0)

# Three steps, each on the whole array that the one before it made, in float32.
x = nd.gaussian_filter(inputs["f32"], [0.8, 0, 1.5], mode="mirror")
x = semblance_coherence(envelope(x, None).astype("f4"), "nearest", [3, 3, 5]).astype("f4")

described = {n: {"dtype": str(x.dtype), "shape": x.shape, "values": x.tobytes().hex()} for n, x in inputs.items()}
text = json.dumps({"inputs": described, "cases": cases, "chain": {"input": "f32", "want": x.tobytes().hex()}})
pathlib.Path(__file__).with_suffix(".json").write_text(text.replace('{"op"', '\n{"op"') + "\n")
