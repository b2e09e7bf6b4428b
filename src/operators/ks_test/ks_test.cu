// ks_test: counts k of the pixels of a block against their neighbours, in two kernels. The host turns counts into dist and p.
//
// Defines, from device.rs: IMAGES (1..254), DTYPE of the input, KEY (float or double: what amplitudes are compared as),
// TILE columns by SPAN offsets for a thread block, SORTED threads for a block that sorts in shared memory, IN_REGISTERS.
// IN_REGISTERS: a pixel keeps its sorted sample in registers, and all loops over images are unrolled. Else (many images)
// samples are sorted in shared memory and merged from global memory: right, not fast.

typedef KEY key;

// Amplitudes of every pixel, sorted: keys[image][pixel]. A pixel with a NaN or the missing value gets zeros, and 255 in
// `invalid`, else 0. Strides count elements. One thread a pixel; blocks of TILE threads, or SORTED for many images.
KERNEL ks_sort(const element *input, i64 row_stride, i64 col_stride, i64 image_stride, i64 pixels, int cols, key *keys,
               u8 *invalid, int has_missing, double missing_re, double missing_im) {
    i64 pixel = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (pixel >= pixels) return;
    const element *at = input + pixel / cols * row_stride + pixel % cols * col_stride;
    bool is_valid = true;
#if IN_REGISTERS
    key sample[IMAGES];
#define SAMPLE(i) sample[i]
#else
    __shared__ key shared[IMAGES][SORTED];
#define SAMPLE(i) shared[i][threadIdx.x]
#endif
#if IN_REGISTERS
#pragma unroll
#endif
    for (int i = 0; i < IMAGES; i++) {
        element value = at[i * image_stride];
        double amplitude = magnitude(value);
        bool is_missing = has_missing && real_part(value) == missing_re && imaginary_part(value) == missing_im;
        is_valid = is_valid && amplitude == amplitude && !is_missing;
        SAMPLE(i) = (key)amplitude;
    }
#if IN_REGISTERS
    // Odd-even transposition: every index is known to the compiler, so the sample never leaves its registers.
#pragma unroll
    for (int round = 0; round < IMAGES; round++) {
#pragma unroll
        for (int i = round & 1; i + 1 < IMAGES; i += 2) {
            key x = sample[i], y = sample[i + 1];
            sample[i] = y < x ? y : x;
            sample[i + 1] = y < x ? x : y;
        }
    }
#else
    // Batcher's merge exchange, as on the CPU: all threads compare the same indices, so none waits for another.
    int top = 1;
    while (2 * top < IMAGES) top *= 2;
    for (int p = top; p > 0; p /= 2) {
        for (int q = top, r = 0, d = p;;) {
            for (int i = 0; i + d < IMAGES; i++) {
                if ((i & p) != r) continue;
                key x = SAMPLE(i), y = SAMPLE(i + d);
                SAMPLE(i) = y < x ? y : x;
                SAMPLE(i + d) = y < x ? x : y;
            }
            if (q == p) break;
            d = q - p;
            q /= 2;
            r = p;
        }
    }
#endif
#if IN_REGISTERS
#pragma unroll
#endif
    for (int i = 0; i < IMAGES; i++) keys[i * pixels + pixel] = is_valid ? SAMPLE(i) : (key)0;
    invalid[pixel] = is_valid ? 0 : 255;
}

#if IN_REGISTERS
// k > t exactly when for some i in t..N: u[i] < v[i - t] or v[i] < u[i - t]; the condition for t + 1 implies that for t.
__device__ inline int distance(const key *u, const key *v) {
#pragma unroll
    for (int t = 0; t < IMAGES; t++) {
        bool hit = false;
#pragma unroll
        for (int i = t; i < IMAGES; i++) hit = hit | (u[i] < v[i - t]) | (v[i] < u[i - t]);
        if (!hit) return t;
    }
    return IMAGES;
}
#else
// Walks both samples, `step` apart from image to image, and keeps the largest difference of the positions.
__device__ inline int distance(const key *u, const key *v, i64 step) {
    int i = 0, j = 0, k = 0;
    while (i < IMAGES && j < IMAGES) {
        key x = u[i * step], y = v[j * step];
        i += x <= y;
        j += y <= x;
        int apart = i < j ? j - i : i - j;
        k = apart > k ? apart : k;
    }
    return k;
}
#endif

// counts[row][plane][col] for `count_rows` rows from `first_row` of the `rows` x `cols` pixels whose keys are given; 255 where
// either pixel is invalid or the neighbour is not among them. A plane is one offset of the window: all of them, or, when
// `symmetric`, the forward half (later columns of the row itself, then whole later lines), since k(x, y) = k(y, x).
//
// A thread block does TILE columns of one row against SPAN offsets of one line of the window: (row, line, span, tile).
KERNEL ks_count(const key *keys, const u8 *invalid, u8 *counts, int rows, int cols, int first_row, int half_rows,
                int half_cols, int symmetric, int tiles) {
    int breadth = 2 * half_cols + 1;
    int spans = (breadth + SPAN - 1) / SPAN;
    int lines = symmetric ? half_rows + 1 : 2 * half_rows + 1;
    int planes = symmetric ? half_cols + half_rows * breadth : lines * breadth;
    int rest = (int)blockIdx.x;
    int tile = rest % tiles;
    rest /= tiles;
    int span = rest % spans;
    rest /= spans;
    int line = rest % lines - (symmetric ? 0 : half_rows);
    int count_row = rest / lines;
    int thread = (int)threadIdx.x;
    int row = first_row + count_row, col = tile * TILE + thread;
    int first_shift = span * SPAN - half_cols;
    i64 pixels = (i64)rows * cols;
    bool has_line = row + line >= 0 && row + line < rows;
    i64 line_at = (i64)(row + line) * cols;
#if IN_REGISTERS
    __shared__ key others[IMAGES][TILE + SPAN];
#endif
    __shared__ u8 other_invalid[TILE + SPAN];
    for (int c = thread; c < TILE + SPAN; c += TILE) {
        i64 other = (i64)tile * TILE + first_shift + c;
        bool is_here = has_line && other >= 0 && other < cols;
        other_invalid[c] = is_here ? invalid[line_at + other] : 255;
#if IN_REGISTERS
#pragma unroll
        for (int i = 0; i < IMAGES; i++) others[i][c] = is_here ? keys[i * pixels + line_at + other] : (key)0;
#endif
    }
    __syncthreads();
    if (col >= cols) return;
    i64 pixel = (i64)row * cols + col;
    u8 own_invalid = invalid[pixel];
#if IN_REGISTERS
    key own[IMAGES];
#pragma unroll
    for (int i = 0; i < IMAGES; i++) own[i] = keys[i * pixels + pixel];
#endif
    for (int s = 0; s < SPAN; s++) {
        int shift = first_shift + s;
        if (shift > half_cols) break;
        if (symmetric && line == 0 && shift < 1) continue;
        int k = 255;
        if (!(own_invalid | other_invalid[thread + s])) {
#if IN_REGISTERS
            key other[IMAGES];
#pragma unroll
            for (int i = 0; i < IMAGES; i++) other[i] = others[i][thread + s];
            k = distance(own, other);
#else
            k = distance(keys + pixel, keys + line_at + col + shift, pixels);
#endif
        }
        int plane;
        if (!symmetric) plane = (line + half_rows) * breadth + shift + half_cols;
        else if (line == 0) plane = shift - 1;
        else plane = half_cols + (line - 1) * breadth + shift + half_cols;
        counts[((i64)count_row * planes + plane) * cols + col] = (u8)k;
    }
}
