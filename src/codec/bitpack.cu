// Unpacks rows of WIDTH-bit values (1, 2 or 4) to bytes: first value of a byte in its lowest bits, rows padded to a byte.
//
// Defines: WIDTH. Any grid: threads stride over the values, neighbours write neighbouring bytes.

KERNEL unpack(const u8 *packed, u8 *values, i64 rows, i64 row_len) {
    i64 row_bytes = (row_len * WIDTH + 7) / 8;
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < rows * row_len; i += step) {
        i64 bit = i % row_len * WIDTH;
        values[i] = (packed[i / row_len * row_bytes + bit / 8] >> (bit % 8)) & ((1 << WIDTH) - 1);
    }
}
