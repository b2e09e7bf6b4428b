"""The KS test with Numba, straightforward: what halostream's kernels are compared with on a GPU (.ci/gpu.sh).

    python3 plain_ks.py STACK.npy K.npy HALF_ROWS HALF_COLS

STACK is complex64 (row, column, image). A thread a pixel sorts its amplitudes by insertion, a thread a pair merges two
sorted samples. Prints the times, and ends with 1 unless every k equals that of K (255: no test). Ends with 3, and a line,
where there is no Numba or no device for it. NUMBA_ENABLE_CUDASIM=1 runs it without a device, slowly: small stacks only.
"""

import math
import sys
import time

import numpy as np

try:
    from numba import config, cuda
except ImportError as error:
    cuda, why = None, error

THREADS = 256


def sort(stack, ordered):
    pixel = cuda.grid(1)
    if pixel >= stack.shape[0]:
        return
    for i in range(stack.shape[1]):
        # Squares of singles are exact in doubles: whether they are added by a fused operation makes no difference.
        real, imag = np.float64(stack[pixel, i, 0]), np.float64(stack[pixel, i, 1])
        value = np.float32(math.sqrt(real * real + imag * imag))
        place = i
        while place > 0 and ordered[pixel, place - 1] > value:
            ordered[pixel, place] = ordered[pixel, place - 1]
            place -= 1
        ordered[pixel, place] = value


def count(ordered, k, rows, cols, half_rows, half_cols):
    cell = cuda.grid(1)
    breadth = 2 * half_cols + 1
    window = (2 * half_rows + 1) * breadth
    if cell >= rows * cols * window:
        return
    pixel = cell // window
    offset = cell % window
    row = pixel // cols + offset // breadth - half_rows
    col = pixel % cols + offset % breadth - half_cols
    if row < 0 or row >= rows or col < 0 or col >= cols:
        k[cell] = 255
        return
    other = row * cols + col
    images = ordered.shape[1]
    i = 0
    j = 0
    most = 0
    while i < images and j < images:
        x = ordered[pixel, i]
        y = ordered[other, j]
        if x <= y:
            i += 1
        if y <= x:
            j += 1
        most = max(most, abs(i - j))
    k[cell] = most


def main(stack_file, k_file, half_rows, half_cols):
    if cuda is None:
        print(f"numba: not compared, {why}")
        return 3
    if not (config.ENABLE_CUDASIM or cuda.is_available()):
        print("numba: not compared, it sees no device")
        return 3
    stack = np.load(stack_file, mmap_mode="r")
    rows, cols, images = stack.shape
    pixels, window = rows * cols, (2 * half_rows + 1) * (2 * half_cols + 1)
    # The amplitudes of this input hold no NaN, which these kernels would not know.
    assert stack.dtype == np.complex64 and not np.isnan(stack.sum())
    device = cuda.to_device(np.ascontiguousarray(stack).view(np.float32).reshape(pixels, images, 2))
    ordered = cuda.device_array((pixels, images), np.float32)
    k = cuda.device_array(pixels * window, np.uint8)
    sort_them, count_them = cuda.jit(sort), cuda.jit(count)
    best = {}
    for _ in range(1 if config.ENABLE_CUDASIM else 4):
        for name, run in {
            "sort": lambda: sort_them[-(-pixels // THREADS), THREADS](device, ordered),
            "count": lambda: count_them[-(-pixels * window // THREADS), THREADS](
                ordered, k, rows, cols, half_rows, half_cols
            ),
        }.items():
            since = time.perf_counter()
            run()
            cuda.synchronize()
            best[name] = min(best.get(name, math.inf), (time.perf_counter() - since) * 1e3)
    print(f"numba: sort {best['sort']:.2f} ms, count {best['count']:.2f} ms, both {sum(best.values()):.2f} ms")
    want = np.load(k_file, mmap_mode="r").reshape(-1)
    wrong = int(np.count_nonzero(k.copy_to_host() != want))
    print(f"numba: {wrong} of {want.size} cells differ from halostream's")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
