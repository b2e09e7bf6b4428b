"""Two-sample Kolmogorov-Smirnov distance of every pixel to its neighbours: a child for `op = "external"`
(examples/external_ks_test.toml).

The stack is (azimuth, range, image); the result drops the image axis and adds a window of
(2 * half[0] + 1) x (2 * half[1] + 1): [a, r, l, m] compares pixel (a, r) with (a + l - half[0], r + m - half[1]), NaN
where that lies outside the image or a sample holds NaN. Complex pixels are compared by power. The built-in `ks_test` gives the same distances many times faster; this shows what a
user function of this kind looks like.
"""
import numpy as np
from halostream_child import serve


def distances(u, v):
    """max |F_u - F_v| of samples sorted along the last axis, at every value of either: ties are exact."""
    n = u.shape[-1]
    both = np.concatenate([u, v], -1)
    order = np.argsort(both, -1, kind="stable")
    steps = np.where(order < n, 1, -1).cumsum(-1)
    merged = np.take_along_axis(both, order, -1)
    # Between equal values the step function has no value: only the last of them counts.
    is_last = np.concatenate([merged[..., 1:] != merged[..., :-1], np.ones((*merged.shape[:-1], 1), bool)], -1)
    return (np.abs(steps) * is_last).max(-1) / n


def ks_test(stack, half_window):
    # Boundary "none": blocks end where the image ends, so a neighbour outside the block is outside the image, or the
    # pixel is halo and will be cut off.
    rows, columns, _ = stack.shape
    if np.iscomplexobj(stack):
        stack = stack.real**2 + stack.imag**2
    ordered = np.sort(stack, -1)
    half_rows, half_columns = half_window
    out = np.full((rows, columns, 2 * half_rows + 1, 2 * half_columns + 1), np.nan, np.float32)
    for l in range(-half_rows, half_rows + 1):
        for m in range(-half_columns, half_columns + 1):
            here = np.s_[max(0, -l) : max(0, min(rows, rows - l)), max(0, -m) : max(0, min(columns, columns - m))]
            there = np.s_[max(0, l) : max(0, min(rows, rows + l)), max(0, m) : max(0, min(columns, columns + m))]
            u, v = ordered[here], ordered[there]
            if u.size:
                # NaN sorts last: one look at the end of each sample finds it.
                has_nan = np.isnan(u[..., -1] + v[..., -1])
                out[here][..., l + half_rows, m + half_columns] = np.where(has_nan, np.nan, distances(u, v))
    return out


serve(ks_test)
