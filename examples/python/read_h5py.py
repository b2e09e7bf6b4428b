"""A dataset of an HDF5 file as an input: `[input] command` asks for regions of it. Needs h5py.

    [input]
    command = ["python3", "examples/python/read_h5py.py"]
    params = { path = "scan.h5", dataset = "entry/data" }
    shape = [1800, 2048, 2048]          # `python3 read_h5py.py scan.h5 entry/data` prints these three lines
    dtype = "uint16"
    chunks = [8, 512, 512]

Chunks that are whole chunks of the dataset (or several) are read once each.
"""
import sys

import h5py
from halostream_child import serve

files = {}


def region(path, dataset, block):
    """The part of the dataset that is asked for; the file stays open from one to the next."""
    if path not in files:
        files[path] = h5py.File(path, "r")
    return files[path][dataset][tuple(slice(start, stop) for start, stop in block["core"])]


if len(sys.argv) == 3:
    data = h5py.File(sys.argv[1], "r")[sys.argv[2]]
    print(f'shape = {list(data.shape)}\ndtype = "{data.dtype.name}"\nchunks = {list(data.chunks or data.shape)}')
else:
    serve(region)
