"""TIFF files of every kind that is read, and their values. Writes tiffs.json beside this file.

    python3 tests/golden/tiffs.py            (made with tifffile 2026.11.8, imagecodecs 2026.10.10, numpy 2.5.5)

A case is a file in hex, and the shape, dtype and bytes (little endian, C order) that tifffile reads from it; planes of samples are
moved behind the pixels.
"""
import io
import json
import pathlib
import struct

import numpy as np
import tifffile

rng = np.random.default_rng(11)
cases = []


def values(dtype, *shape):
    x = rng.normal(size=shape) * 60
    x = np.round(np.cumsum(x, axis=-1 if len(shape) < 4 else -2) / 3)
    dtype = np.dtype(dtype)
    if dtype.kind == "u":
        x = np.abs(x)
    if dtype.kind == "c":
        x = x + 1j * x[..., ::-1]
    if dtype.itemsize == 1:
        x = np.clip(x, -128 if dtype.kind == "i" else 0, 127)
    if dtype.kind in "iu" and dtype.itemsize > 2:
        x = x * 3 ** (4 * dtype.itemsize // 2)
    return x.astype(dtype)


def add(name, x, data=None, read=None, **how):
    if data is None:
        f = io.BytesIO()
        tifffile.imwrite(f, x, metadata=how.pop("metadata", None), **how)
        data = f.getvalue()
    y = tifffile.imread(io.BytesIO(data)) if read is None else read(data)
    y = np.ascontiguousarray(y)
    assert y.shape == x.shape and y.dtype == x.dtype.newbyteorder("="), (name, y.shape, y.dtype)
    assert np.array_equal(x, y), name
    if how.get("planarconfig") == "separate":
        y = np.moveaxis(y, -3, -1)
    y = np.ascontiguousarray(y.astype(y.dtype.newbyteorder("<")))
    cases.append({"name": name, "file": data.hex(), "shape": y.shape, "dtype": y.dtype.name, "want": y.tobytes().hex()})


ALL = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]
grey = {"photometric": "minisblack"}
for dtype in ALL:
    add(f"{dtype} little", values(dtype, 7, 9), **grey)
    add(f"{dtype} big", values(dtype, 7, 9), byteorder=">", rowsperstrip=3, **grey)
for compression in ["lzw", "zlib", "packbits", "zstd"]:
    for dtype, predictor in [("u1", 1), ("u2", 1), ("f4", 1), ("u1", 2), ("u2", 2), ("i4", 2), ("u8", 2), ("f2", 3), ("f4", 3), ("f8", 3)]:
        if compression == "packbits" and predictor > 1:
            continue
        how = {"compression": compression, "predictor": predictor, **grey}
        order = rng.choice(["<", ">"])
        add(f"{compression} {dtype} predictor {predictor} {order} strips", values(dtype, 19, 23), rowsperstrip=5, byteorder=order, **how)
        add(f"{compression} {dtype} predictor {predictor} {order} tiles", values(dtype, 19, 35), tile=(16, 32), byteorder=order, **how)
add("tiles", values("u2", 33, 18), tile=(16, 16), **grey)
add("bigtiff", values("u2", 5, 6), bigtiff=True, **grey)
add("bigtiff big", values("f4", 3, 5, 6), bigtiff=True, byteorder=">", rowsperstrip=2, **grey)
add("pages", values("i2", 5, 7, 6), rowsperstrip=4, **grey)
add("pages lzw", values("u2", 3, 20, 17), compression="lzw", **grey)
add("white is zero", values("u1", 6, 5), photometric="miniswhite")
for planar in ["contig", "separate"]:
    for how in [{"rowsperstrip": 4}, {"tile": (16, 16)}, {"tile": (16, 16), "compression": "zlib", "predictor": 2}, {"rowsperstrip": 3, "compression": "lzw", "predictor": 2}]:
        shape = (11, 19, 3) if planar == "contig" else (3, 11, 19)
        add(f"rgb {planar} {how}", values("u2", *shape), photometric="rgb", planarconfig=planar, **how)
add("two samples", values("f4", 4, 5, 2), planarconfig="contig", photometric="minisblack", extrasamples=[0], compression="zlib", predictor=3)
add("rgba pages", values("u1", 2, 4, 5, 4), planarconfig="contig", photometric="rgb", extrasamples=["unassalpha"])

# Conventions: ImageJ's hyperstacks and OME have one page per plane, whatever their axes mean.
x = values("u2", 2, 3, 2, 6, 5)
f = io.BytesIO()
tifffile.imwrite(f, x, imagej=True, metadata={"axes": "TZCYX"})
pages = lambda data: np.stack([p.asarray() for p in tifffile.TiffFile(io.BytesIO(data)).pages])
flat = x.reshape(-1, 6, 5)
add("imagej", flat, data=f.getvalue(), read=pages)
# What ImageJ writes beyond 4 GB: one directory, the images behind each other.
data = bytearray(f.getvalue())
order = "<" if data[:2] == b"II" else ">"
at, = struct.unpack_from(order + "I", data, 4)
count, = struct.unpack_from(order + "H", data, at)
struct.pack_into(order + "I", data, at + 2 + 12 * count, 0)
add("imagej one directory", flat, data=bytes(data), read=lambda data: tifffile.imread(io.BytesIO(data)).reshape(flat.shape))
# What tifffile writes when it is told to truncate.
f = io.BytesIO()
x = values("i2", 4, 6, 5)
with tifffile.TiffWriter(f, shaped=True) as w:
    w.write(x, truncate=True, photometric="minisblack")
add("truncated", x, data=f.getvalue())
f = io.BytesIO()
tifffile.imwrite(f, values("u1", 2, 3, 6, 5), ome=True, metadata={"axes": "TCYX"}, photometric="minisblack")
ome = pages(f.getvalue())
add("ome", ome, data=f.getvalue(), read=pages)
# A second series behind the first: not read.
f = io.BytesIO()
with tifffile.TiffWriter(f, ome=True) as w:
    first = values("u1", 3, 6, 5)
    w.write(first, photometric="minisblack", metadata={"axes": "TYX"})
    w.write(values("u2", 2, 4, 4), photometric="minisblack", metadata={"axes": "TYX"})
add("ome series", first, data=f.getvalue(), read=lambda data: tifffile.imread(io.BytesIO(data)))
# Reduced copies in the chain are no pages.
f = io.BytesIO()
with tifffile.TiffWriter(f) as w:
    full = values("u2", 20, 22)
    w.write(full, metadata=None, photometric="minisblack")
    w.write(full[::2, ::2], metadata=None, subfiletype=1, photometric="minisblack")
add("overviews", full, data=f.getvalue(), read=lambda data: tifffile.TiffFile(io.BytesIO(data)).pages[0].asarray())

lines = ",\n".join(json.dumps(c) for c in cases)
pathlib.Path(__file__).with_suffix(".json").write_text("[\n" + lines + "\n]\n")
print(len(cases), "cases")
