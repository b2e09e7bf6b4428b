"""Stores for tests/interop.rs. One process: checks the stores that Rust wrote, then writes its own.

usage: interop.py DIR
DIR/ours.json lists Rust's stores (path, array, dtype, shape, chunks), values beside them as PATH.bin.
DIR/theirs.json lists the stores written here in the same form.
"""
import json
import pathlib
import sys
import warnings

import numcodecs
import numpy as np
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

warnings.simplefilter("ignore")
root = pathlib.Path(sys.argv[1])
rng = np.random.default_rng(7)
DTYPES = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]


def values_of(dtype, shape):
    """Small integers with runs, so that codecs have something to do; NaN and infinity where they exist."""
    a = (rng.integers(0, 5, shape) * rng.integers(0, 2, shape)).astype(dtype)
    if a.dtype.kind in "fc" and a.size > 3:
        a.flat[1], a.flat[2] = np.nan, -np.inf
    if a.dtype.kind in "iu":
        a.flat[0] = np.iinfo(a.dtype).max
    return a


def check(case):
    a = zarr.open(str(root / case["path"]), mode="r")
    a = a[case["array"]] if case["array"] else a
    expected = np.fromfile(root / (case["path"] + ".bin"), dtype=case["dtype"]).reshape(case["shape"])
    got = a[...]
    assert got.dtype == expected.dtype and got.shape == expected.shape, (got.dtype, got.shape)
    assert got.tobytes() == expected.tobytes(), "values differ"
    assert list(a.chunks) == case["chunks"], a.chunks
    assert a.attrs["units"] == "m"
    if a.metadata.zarr_format == 3:
        assert a.metadata.dimension_names[0] == "y", a.metadata.dimension_names
    assert set(a.attrs) <= {"units", "_ARRAY_DIMENSIONS"}, dict(a.attrs)


ours = json.loads((root / "ours.json").read_text())
failed = 0
for case in ours:
    try:
        check(case)
    except Exception as e:  # every failure is told, not only the first
        failed += 1
        print("FAILED", case, repr(e))
if failed:
    sys.exit(1)
print(f"zarr {zarr.__version__} read {len(ours)} stores written here")

theirs = []


def write(dtype, fill=None, **how):
    n = len(theirs)
    rank = 1 + n % 3
    shape = tuple(int(x) for x in rng.integers(3, 12, rank))
    chunks = tuple(int(x) for x in rng.integers(1, 6, rank))
    if how.pop("sharded", False):
        how["shards"] = tuple(c * int(k) for c, k in zip(chunks, rng.integers(1, 4, rank)))
    if "filters" in how and how["filters"] == "transpose":
        how["filters"] = [TransposeCodec(order=tuple(int(x) for x in rng.permutation(rank)))]
    path = f"theirs{n}.zarr"
    if fill is not None:
        how["fill_value"] = fill
    try:
        a = zarr.create_array(str(root / path), shape=shape, chunks=chunks, dtype=dtype, **how)
    except Exception:
        print("cannot write", dtype, how)
        raise
    values = values_of(dtype, shape)
    if n % 2:
        # half of it stays unwritten: fill value
        a[: shape[0] // 2] = values[: shape[0] // 2]
    else:
        a[...] = values
    got = a[...]
    native = got.astype(got.dtype.newbyteorder("<"))
    np.ascontiguousarray(native).tofile(root / (path + ".bin"))
    theirs.append({"path": path, "array": "", "dtype": native.dtype.name, "shape": shape, "how": f"{dtype} {how}"})


def byte_orders(dtype):
    return ["<", ">"] if np.dtype(dtype).itemsize > 1 else ["|"]


for dtype in DTYPES:
    size = np.dtype(dtype).itemsize
    fill = {"b": True, "f": np.nan, "c": complex(1, -2)}.get(np.dtype(dtype).kind, 7)
    v2 = [
        dict(compressors=None),
        dict(compressors=numcodecs.Zstd(level=3)),
        dict(compressors=numcodecs.Zstd(level=1, checksum=True)),
        dict(compressors=numcodecs.GZip(level=1)),
        dict(compressors=numcodecs.Zlib(level=1)),
        dict(compressors=numcodecs.LZ4()),
        dict(compressors=numcodecs.Blosc(cname="lz4", clevel=5, shuffle=1)),
        dict(compressors=numcodecs.Blosc(cname="zstd", clevel=7, shuffle=2)),
        dict(compressors=numcodecs.Blosc(cname="zlib", clevel=1, shuffle=0)),
        dict(compressors=numcodecs.Blosc(cname="blosclz", clevel=9, shuffle=1)),
        dict(compressors=numcodecs.Zlib(level=1), filters=[numcodecs.Shuffle(elementsize=size)]),
    ]
    for i, how in enumerate(v2):
        for order in "CF":
            e = byte_orders(dtype)
            t = dtype if dtype == "bool" else e[i % len(e)] + dtype
            separator = "./"[i % 2]
            keys = {"name": "v2", "separator": separator}
            write(t, fill, zarr_format=2, order=order, chunk_key_encoding=keys, **how)
    big = dict(serializer=BytesCodec(endian="big"))
    v3 = [
        dict(compressors=None),
        dict(compressors=None, **big),
        dict(compressors=[ZstdCodec(level=3)]),
        dict(compressors=[ZstdCodec(level=1, checksum=True)], filters="transpose"),
        dict(compressors=[GzipCodec(level=1)], **big),
        dict(compressors=[BloscCodec(cname="lz4", shuffle="shuffle", typesize=size)]),
        dict(compressors=[BloscCodec(cname="zstd", shuffle="bitshuffle", typesize=size)], filters="transpose"),
        dict(compressors=[Crc32cCodec()]),
        dict(compressors=[ZstdCodec(level=1), Crc32cCodec()], filters="transpose"),
        dict(compressors=None, filters="transpose", **big),
        dict(compressors=None, chunk_key_encoding={"name": "default", "separator": "."}),
        dict(compressors=None, chunk_key_encoding={"name": "v2", "separator": "."}),
        dict(compressors=None, sharded=True),
        dict(compressors=[ZstdCodec(level=3)], sharded=True),
        dict(compressors=[BloscCodec(cname="lz4", typesize=size)], sharded=True, filters="transpose"),
        dict(compressors=[GzipCodec(level=1), Crc32cCodec()], sharded=True),
    ]
    for how in v3:
        write(dtype, fill, zarr_format=3, **how)
(root / "theirs.json").write_text(json.dumps(theirs))
print(f"wrote {len(theirs)} stores")
