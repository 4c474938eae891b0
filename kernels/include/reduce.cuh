// Sums over the lanes of a warp and over the warps of a block, in a fixed order.
#pragma once

// Every lane gets the same bits: at each level both partners add the same two numbers.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

// Lane j takes lane j + 16, then j + 8, …; only lane 0 holds the whole sum.
__device__ __forceinline__ double warp_fold(double x) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) x += __shfl_down_sync(~0u, x, d);
    return x;
}

// Sum over the WARPS warps of a block, the warps in order. All threads take part, and `slots` holds WARPS floats.
template <int WARPS> __device__ __forceinline__ float block_sum(float x, float* slots) {
    x = warp_sum(x);
    if constexpr (WARPS > 1) {
        __syncthreads();
        if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = x;
        __syncthreads();
        x = slots[0];
#pragma unroll
        for (int w = 1; w < WARPS; ++w) x += slots[w];
    }
    return x;
}

// Sum of values[0..count): thread t takes every THREADS-th from t on, then the threads are folded by halves. All threads
// take part and get the sum.
template <int THREADS> __device__ __forceinline__ double block_fold(const double* __restrict__ values, long long count) {
    __shared__ double sums[THREADS];
    double sum = 0;
#pragma unroll 8
    for (long long i = threadIdx.x; i < count; i += THREADS) sum += values[i];
    sums[threadIdx.x] = sum;
#pragma unroll
    for (int d = THREADS / 2; d > 0; d >>= 1) {
        __syncthreads();
        if (threadIdx.x < d) sums[threadIdx.x] += sums[threadIdx.x + d];
    }
    __syncthreads();
    return sums[0];
}
