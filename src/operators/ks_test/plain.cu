// ks_test as one writes it first: a thread a pixel sorts its sample by insertion, a thread a pair merges two sorted samples
// from global memory. For comparison, in tests and on GPUs; jobs do not run it.
//
// Defines: IMAGES, DTYPE, KEY. The stack is (row, column, image); k is (row, column, line of the window, column of it).

typedef KEY key;

KERNEL plain_sort(const element *stack, key *sorted, u8 *invalid, i64 pixels) {
    i64 pixel = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (pixel >= pixels) return;
    key sample[IMAGES];
    bool is_valid = true;
    for (int i = 0; i < IMAGES; i++) {
        key value = (key)magnitude(stack[pixel * IMAGES + i]);
        is_valid = is_valid && value == value;
        int place = i;
        for (; place > 0 && sample[place - 1] > value; place--) sample[place] = sample[place - 1];
        sample[place] = value;
    }
    for (int i = 0; i < IMAGES; i++) sorted[pixel * IMAGES + i] = sample[i];
    invalid[pixel] = !is_valid;
}

KERNEL plain_count(const key *sorted, const u8 *invalid, u8 *k, i64 rows, i64 cols, int half_rows, int half_cols) {
    int breadth = 2 * half_cols + 1, window = (2 * half_rows + 1) * breadth;
    i64 cell = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (cell >= rows * cols * window) return;
    i64 pixel = cell / window;
    int offset = (int)(cell % window);
    i64 row = pixel / cols + offset / breadth - half_rows, col = pixel % cols + offset % breadth - half_cols;
    i64 other = row * cols + col;
    if (row < 0 || row >= rows || col < 0 || col >= cols || invalid[pixel] || invalid[other]) {
        k[cell] = 255;
        return;
    }
    const key *u = sorted + pixel * IMAGES, *v = sorted + other * IMAGES;
    int i = 0, j = 0, most = 0;
    while (i < IMAGES && j < IMAGES) {
        key x = u[i], y = v[j];
        if (x <= y) i++;
        if (y <= x) j++;
        int apart = i < j ? j - i : i - j;
        if (apart > most) most = apart;
    }
    k[cell] = (u8)most;
}
