"""Run your own numpy function inside halostream: `serve(function)`.

    from halostream_child import serve

    def double(x):
        return 2 * x

    serve(double)

The function gets one numpy array per input of the step (the block with its halo, read-only) and the step's `params` as
keywords. It returns an array, or a tuple of arrays for several outputs. With `trim = true` each has the shape of the
block it was given; halostream cuts the halo off. A function that names an argument `block` is told where it is:

    def function(x, block):
        block["block"]              # number of the block
        block["core"]               # [[start, stop], ...]: the part that will be kept, in array coordinates
        block["inputs"][0]          # {"name": ..., "shape": ..., "dtype": ..., "region": [[start, stop], ...]}

An exception fails the job with its type and text; the traceback goes to the log. `print` goes to the log too: stdout
belongs to the protocol. Needs numpy only. Copy this file beside your script, or put its folder on PYTHONPATH.
"""
import inspect
import json
import math
import os
import sys
import traceback

import numpy as np


def serve(function):
    """Answer blocks with `function(*arrays, **params)` until halostream closes our stdin."""
    stdin = sys.stdin.buffer
    # The protocol keeps a descriptor of its own; 1 becomes stderr, so that prints of C libraries cannot end up in it.
    stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    hello = json.loads(stdin.readline() or "{}")
    if hello.get("halostream") != 1:
        _send(stdout, {"error": "this module speaks protocol 1; is halostream the caller?"})
        return
    params = hello["params"]
    wants_block = "block" in inspect.signature(function).parameters and "block" not in params
    _send(stdout, {"ready": True})

    for line in stdin:
        head = json.loads(line)
        arrays = [_read(stdin, item) for item in head["inputs"]]
        try:
            extra = {"block": head} if wants_block else {}
            result = function(*arrays, **params, **extra)
            # A scalar is an array without axes; `order="C"` copies only what is laid out otherwise.
            outputs = [np.asarray(a, order="C") for a in (result if isinstance(result, tuple) else (result,))]
            outputs = [a.astype(a.dtype.newbyteorder("<"), copy=False) for a in outputs]
        except Exception as error:  # noqa: BLE001: whatever it is, the job's message shall show it
            traceback.print_exc()
            _send(stdout, {"block": head["block"], "error": f"{type(error).__name__}: {error}"})
            continue
        described = [{"shape": list(a.shape), "dtype": a.dtype.str} for a in outputs]
        _send(stdout, {"block": head["block"], "outputs": described}, *outputs)


def _read(stdin, item):
    dtype = np.dtype(item["dtype"])
    count = math.prod(item["shape"])
    data = stdin.read(count * dtype.itemsize)
    if len(data) < count * dtype.itemsize:
        sys.exit(0)  # halostream is gone
    return np.frombuffer(data, dtype).reshape(item["shape"])


def _send(stdout, message, *arrays):
    stdout.write(json.dumps(message).encode() + b"\n")
    for array in arrays:
        # An array without elements has no memory to view.
        stdout.write(memoryview(array.reshape(-1).view(np.uint8)) if array.size else b"")
    stdout.flush()
