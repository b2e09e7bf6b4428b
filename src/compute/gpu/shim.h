// Runs CUDA C on the CPU, for tests: put in front of a kernel's source and compiled with the system's C++ compiler.
//
// Blocks run one after the other; each thread of a block is a fiber with its own stack, __syncthreads() goes on to the next
// one. Fibers run in order, or shuffled anew between barriers: a kernel that lacks a barrier gives other results then.
// Shared memory is static, and filled with ones (NaN as a float) before each block. No warp primitives.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
// All of it in one section of the library, which is absent where a kernel has none.
#define __shared__ static __attribute__((section("shim_shared")))
extern char __start_shim_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_shim_shared[] __attribute__((weak, visibility("hidden")));

struct Index {
    unsigned x, y, z;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

namespace shim {
constexpr size_t STACK = 128 << 10;

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    bool is_done;
};

static ucontext_t scheduler;
static std::vector<Fiber> fibers;
static Fiber *current;
static void (*body)(void **);
static void **arguments;

static void enter() {
    body(arguments);
    current->is_done = true;
    swapcontext(&current->context, &scheduler);
}

static uint64_t next(uint64_t &state) {
    state += 0x9e3779b97f4a7c15ull;
    uint64_t z = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// seed 0: threads in order.
static void run(unsigned blocks, unsigned threads, uint64_t seed) {
    gridDim = {blocks, 1, 1};
    blockDim = {threads, 1, 1};
    if (fibers.size() < threads) fibers.resize(threads);
    for (unsigned t = 0; t < threads; t++)
        if (!fibers[t].stack) fibers[t].stack.reset(new char[STACK]);
    std::vector<unsigned> order(threads);
    for (unsigned t = 0; t < threads; t++) order[t] = t;
    for (unsigned b = 0; b < blocks; b++) {
        blockIdx = {b, 0, 0};
        memset(__start_shim_shared, 0xff, __stop_shim_shared - __start_shim_shared);
        for (unsigned t = 0; t < threads; t++) {
            Fiber &fiber = fibers[t];
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.get();
            fiber.context.uc_stack.ss_size = STACK;
            fiber.context.uc_link = nullptr;
            makecontext(&fiber.context, enter, 0);
            fiber.is_done = false;
        }
        for (bool is_left = true; is_left;) {
            is_left = false;
            if (seed)
                for (unsigned t = threads; t > 1; t--) std::swap(order[t - 1], order[next(seed) % t]);
            for (unsigned t : order) {
                if (fibers[t].is_done) continue;
                current = &fibers[t];
                threadIdx = {t, 0, 0};
                swapcontext(&scheduler, &current->context);
                is_left |= !current->is_done;
            }
        }
    }
}

template <auto kernel, class... A, size_t... I>
static void apply(void (*)(A...), void **arguments, std::index_sequence<I...>) {
    kernel(*static_cast<A *>(arguments[I])...);
}

template <auto kernel, class... A>
static void call(void (*as)(A...), void **arguments) {
    apply<kernel>(as, arguments, std::index_sequence_for<A...>{});
}

template <auto kernel>
static int launch(void **own_arguments, unsigned blocks, unsigned threads, uint64_t seed) {
    body = [](void **arguments) { call<kernel>(kernel, arguments); };
    arguments = own_arguments;
    run(blocks, threads, seed);
    return 0;
}
} // namespace shim

static inline void __syncthreads() {
    unsigned own = threadIdx.x;
    swapcontext(&shim::current->context, &shim::scheduler);
    threadIdx = {own, 0, 0};
}

#define SHIM_ENTRY(kernel) \
    extern "C" int shim_##kernel(void **arguments, unsigned blocks, unsigned threads, uint64_t seed) { \
        return shim::launch<kernel>(arguments, blocks, threads, seed); \
    }
