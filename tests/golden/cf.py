"""Golden values of CF's packed numbers: what xarray decodes. Writes cf.json beside this file.

    python3 tests/golden/cf.py               (made with xarray 2026.9.0, zarr 3.1.6, numpy 2.4.6)

A case is an array's metadata as Zarr has it (format, dtype, attributes, fill value), stored values, and the values that
`xarray.open_zarr(decode_cf=True, decode_times=False)` has of them (little endian, C order, in hex).
"""
import json
import pathlib
import tempfile
import warnings

import numpy as np
import xarray as xr
import zarr

warnings.simplefilter("ignore")
rng = np.random.default_rng(5)
cases = []


def add(name, stored, attributes, fill=None, zarr_format=2):
    with tempfile.TemporaryDirectory() as folder:
        root = zarr.open_group(folder, mode="w", zarr_format=zarr_format)
        how = {"dimension_names": ["y", "x"]} if zarr_format == 3 else {}
        attrs = dict(attributes) if zarr_format == 3 else {**attributes, "_ARRAY_DIMENSIONS": ["y", "x"]}
        array = root.create_array("u", shape=stored.shape, chunks=stored.shape, dtype=stored.dtype, fill_value=fill, attributes=attrs, compressors=None, **how)
        array[...] = stored
        got = xr.open_zarr(folder, consolidated=False, decode_cf=True, decode_times=False, decode_timedelta=False).u
        got = got.values
        document = "zarr.json" if zarr_format == 3 else ".zarray"
        document = json.loads((pathlib.Path(folder) / "u" / document).read_text())
    hexed = lambda x: np.ascontiguousarray(x).tobytes().hex()
    cases.append({
        "name": name, "zarr_format": zarr_format, "fill_value": document["fill_value"], "attributes": attributes,
        "shape": stored.shape, "dtype": stored.dtype.name, "stored": hexed(stored),
        "decoded_dtype": got.dtype.name, "decoded": hexed(got),
    })


def numbers(dtype, marks=()):
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        x = rng.normal(size=(9, 7)).astype(dtype) * dtype.type(50)
        x[0, 0] = np.nan
    else:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        x = rng.integers(low, high, (9, 7), dtype=dtype, endpoint=True)
        x.flat[:3] = low, high, 0
    x.flat[5 : 5 + len(marks)] = np.array(marks, dtype)
    return x


INTEGERS = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8"]
for dtype in INTEGERS:
    add(f"{dtype} scale and offset", numbers(dtype, [7]), {"scale_factor": 0.01, "add_offset": 3.5, "_FillValue": 7}, zarr_format=3)
    add(f"{dtype} mask", numbers(dtype, [9, 11]), {"missing_value": [9, 11]}, fill=7 if dtype[0] == "u" else -7)
    add(f"{dtype} scale", numbers(dtype), {"scale_factor": 0.1})
    add(f"{dtype} _Unsigned", numbers(dtype), {"_Unsigned": "false" if dtype[0] == "u" else "true"})
    add(f"{dtype} nothing", numbers(dtype), {"units": "m"})
for dtype in ["f2", "f4", "f8"]:
    add(f"{dtype} mask", numbers(dtype, [-1024]), {"missing_value": -1024.0})
    add(f"{dtype} fill", numbers(dtype, [4.5]), {}, fill=4.5)
    add(f"{dtype} scale", numbers(dtype, [4.5]), {"scale_factor": 0.25, "add_offset": -1.0}, fill=4.5)
add("_Unsigned with scale and fill", numbers("i1", [-1]), {"_Unsigned": "true", "_FillValue": -1, "scale_factor": 2.0}, zarr_format=3)
add("an offset that float32 cannot carry", numbers("i2", [-5]), {"scale_factor": 0.001, "add_offset": 1e6}, fill=-5)
add("a large offset that it can", numbers("i2"), {"scale_factor": 0.01, "add_offset": 273.15})
add("offset only", numbers("u1"), {"add_offset": 10})
add("a float as the mark of integers", numbers("i2", [-999]), {"missing_value": -999.0})
add("a mark that integers cannot hold", numbers("i2"), {"missing_value": 1e20})
add("an absent chunk's zero", numbers("i4"), {"scale_factor": 0.5}, fill=0)
add("a list of one", numbers("i2"), {"scale_factor": [0.5], "add_offset": [1]})
add("units of time stay numbers", numbers("i2", [-1]), {"units": "days since 2000-01-01", "_FillValue": -1, "scale_factor": 0.5, "add_offset": 0.0}, zarr_format=3)
add("valid_range masks nothing", numbers("i2"), {"valid_range": [0, 10], "scale_factor": 0.5})

(pathlib.Path(__file__).parent / "cf.json").write_text(json.dumps(cases))
print(len(cases), "cases")
