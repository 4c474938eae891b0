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

// The state that enters each segment, in order, over the ends [batch, segments, channels, states] of the segments before
// it; `h0` (null: zero) enters the first. Nothing passes a segment in which a document begins: its sum is negative.
__global__ __launch_bounds__(THREADS) void scan_segment_entries(const float* __restrict__ neg_a, const float* __restrict__ sums, const float* __restrict__ h0, float* ends, long long batch, long long segments, long long channels, long long states) {
    const long long row = channels * states, total = batch * row;
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < total;
         i += static_cast<long long>(gridDim.x) * THREADS) {
        const long long sequence = i / row, cell = i - sequence * row, channel = cell / states;
        const float a2 = neg_a[cell] * LOG2E;
        float h = h0 ? h0[i] : 0.f;
        float* at = ends + sequence * segments * row + cell;
        const float* sum = sums + sequence * segments * channels + channel;
#pragma unroll 4
        for (long long k = 0; k + 1 < segments; ++k) {
            const float end = at[k * row], dt = sum[k * channels];
            at[k * row] = h;
            h = dt < 0.f ? end : fmaf(exp2_fast(dt * a2), h, end);
        }
        at[(segments - 1) * row] = h;
    }
}

template __global__ void scan_fold_states<float>(const float*, float*, long long, int, int, int, long long);
template __global__ void scan_fold_states<__nv_bfloat16>(const float*, __nv_bfloat16*, long long, int, int, int, long long);
template __global__ void scan_fold_states<__half>(const float*, __half*, long long, int, int, int, long long);
