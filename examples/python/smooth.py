"""Mean over a box of `2 * radius + 1` cells per axis: a child for `op = "external"` (config/external.toml)."""
import numpy as np
from halostream_child import serve


def smooth(x, radius):
    """The step asks for a halo of `radius`, so every cell of the core finds its whole window in the block."""
    total = x.astype(np.float64)
    for axis in range(x.ndim):
        pad = [(radius, radius) if a == axis else (0, 0) for a in range(x.ndim)]
        window = np.lib.stride_tricks.sliding_window_view(np.pad(total, pad, "edge"), 2 * radius + 1, axis)
        total = window.mean(-1)
    return total.astype(x.dtype)


serve(smooth)
