// Helpers shared by kernels. The host puts this text, and before it the defines of a variant, in front of every kernel's
// source: NVRTC then needs no include path, and the tests compile the very same text with the system's C++ compiler.
//
// Rules for kernels: extern "C" (KERNEL), one-dimensional grids and blocks, arguments that are pointers, int, i64 or double;
// compiled with --fmad=false, so that sums of products are rounded like the CPU's.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define KERNEL extern "C" __global__ void

#define DTYPE_U8 1
#define DTYPE_I8 2
#define DTYPE_U16 3
#define DTYPE_I16 4
#define DTYPE_U32 5
#define DTYPE_I32 6
#define DTYPE_F16 7
#define DTYPE_F32 8
#define DTYPE_F64 9
#define DTYPE_C64 10
#define DTYPE_C128 11

struct complex64 {
    float re, im;
};

struct complex128 {
    double re, im;
};

// IEEE half to double, exactly.
__device__ inline double half_to_double(u16 bits) {
    int exponent = (bits >> 10) & 31;
    u64 fraction = bits & 1023;
    u64 wide;
    if (exponent == 31) {
        wide = (2047ull << 52) | (fraction << 42);
    } else if (exponent != 0) {
        wide = ((u64)(exponent - 15 + 1023) << 52) | (fraction << 42);
    } else {
        // Subnormal: a multiple of 2^-24, a power of two that a double holds.
        double value = (double)(int)fraction * (1.0 / 16777216.0);
        return (bits & 0x8000) ? -value : value;
    }
    wide |= (u64)(bits & 0x8000) << 48;
    double value;
    memcpy(&value, &wide, 8);
    return value;
}

// The value and the amplitude of one element as doubles. |z| is computed in double; complex64 rounds it to float once.
#ifdef DTYPE
#if DTYPE == DTYPE_C64
typedef complex64 element;
#elif DTYPE == DTYPE_C128
typedef complex128 element;
#elif DTYPE == DTYPE_F64
typedef double element;
#elif DTYPE == DTYPE_F32
typedef float element;
#elif DTYPE == DTYPE_F16 || DTYPE == DTYPE_U16
typedef u16 element;
#elif DTYPE == DTYPE_I32
typedef int element;
#elif DTYPE == DTYPE_U32
typedef u32 element;
#elif DTYPE == DTYPE_I16
typedef short element;
#elif DTYPE == DTYPE_I8
typedef signed char element;
#else
typedef u8 element;
#endif

#if DTYPE == DTYPE_C64 || DTYPE == DTYPE_C128
__device__ inline double real_part(element z) { return z.re; }
__device__ inline double imaginary_part(element z) { return z.im; }
#elif DTYPE == DTYPE_F16
__device__ inline double real_part(element v) { return half_to_double(v); }
__device__ inline double imaginary_part(element) { return 0.0; }
#else
__device__ inline double real_part(element v) { return (double)v; }
__device__ inline double imaginary_part(element) { return 0.0; }
#endif

__device__ inline double magnitude(element z) {
    double re = real_part(z), im = imaginary_part(z);
#if DTYPE == DTYPE_C64
    return (double)(float)sqrt(re * re + im * im);
#elif DTYPE == DTYPE_C128
    return sqrt(re * re + im * im);
#else
    // Of a real array `ks_test` compares the values themselves.
    return re;
#endif
}
#endif
