// Ordered fold of what the scan's backward leaves per channel block.
#include "storage.cuh"

constexpr int THREADS = 256;

// d_bc[token, n] (B's states, then C's; tokens `ld` apart) = Σ over channel blocks, in order, of
// partial[block][token][2 · padded].
template <typename T>
__global__ __launch_bounds__(THREADS) void scan_fold_states(const float* __restrict__ partial, T* __restrict__ d_bc, long long tokens, int blocks, int states, int padded, long long ld) {
    const long long total = tokens * 2 * padded;
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < total;
         i += static_cast<long long>(gridDim.x) * THREADS) {
        const long long token = i / (2 * padded);
        const int n = static_cast<int>(i - token * 2 * padded);
        const int state = n < padded ? n : n - padded;
        if (state >= states) continue;
        float sum = 0.f;
#pragma unroll 8
        for (int k = 0; k < blocks; ++k) sum += partial[k * total + i];
        d_bc[token * ld + (n < padded ? state : states + state)] = narrow<T>(sum);
    }
}

template __global__ void scan_fold_states<float>(const float*, float*, long long, int, int, int, long long);
template __global__ void scan_fold_states<__nv_bfloat16>(const float*, __nv_bfloat16*, long long, int, int, int, long long);
template __global__ void scan_fold_states<__half>(const float*, __half*, long long, int, int, int, long long);
