// amplitude: |z| of `count` complex elements, in double, rounded once (see common.cuh); NaN is always the same one.
//
// Defines: DTYPE (complex64 or complex128). Any grid: threads stride over the elements.

#if DTYPE == DTYPE_C128
typedef double part;
typedef u64 part_bits;
#define NAN_BITS 0x7ff8000000000000ull
#else
typedef float part;
typedef u32 part_bits;
#define NAN_BITS 0x7fc00000u
#endif

KERNEL amplitude(const element *input, part *output, i64 count) {
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        part value = (part)magnitude(input[i]);
        if (value != value) {
            part_bits bits = NAN_BITS;
            memcpy(&value, &bits, sizeof value);
        }
        output[i] = value;
    }
}
