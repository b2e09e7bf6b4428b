// amplitude: |z| of `count` complex elements, in double, rounded once (see common.cuh).
//
// Defines: DTYPE (complex64 or complex128). Any grid: threads stride over the elements.

#if DTYPE == DTYPE_C128
typedef double part;
#else
typedef float part;
#endif

KERNEL amplitude(const element *input, part *output, i64 count) {
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) output[i] = (part)magnitude(input[i]);
}
