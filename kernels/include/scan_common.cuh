// What the scan's forward and backward kernels share.
//
//   dt = softplus(raw + dt_bias);  h_t = exp(dt·A)·h_{t-1} + (dt·u)·B_t;  y_t = Σ_n h_t·C_t + D·u;  out = y·silu(z)
#pragma once
#include "storage.cuh"

constexpr int SCAN_THREADS = 128;
constexpr int SCAN_CHUNK = 16;   // steps between saved states

// Mirrors `ScanArgs` in mamba-kernels.
struct ScanArgs {
    long long batch, seq_len;
    long long channels, states;
    long long ld_u, ld_raw, ld_z, ld_bc, ld_out;   // elements between tokens
};
static_assert(sizeof(ScanArgs) == 72, "keep in step with ScanArgs in scan/mod.rs");

// Sums over a channel's lanes, for four steps at a time. With four or more lanes, lane i (mod 4) returns the sum of
// step i; with fewer, every lane gets all four.
template <int LANES> __device__ __forceinline__ void sum_lanes(float (&v)[4], int lane) {
    if constexpr (LANES >= 4) {
        const bool odd = lane & 1, high = lane & 2;
        float keep0 = odd ? v[1] : v[0], keep1 = odd ? v[3] : v[2];
        keep0 += __shfl_xor_sync(~0u, odd ? v[0] : v[1], 1);
        keep1 += __shfl_xor_sync(~0u, odd ? v[2] : v[3], 1);
        float sum = (high ? keep1 : keep0) + __shfl_xor_sync(~0u, high ? keep0 : keep1, 2);
#pragma unroll
        for (int d = 4; d < LANES; d <<= 1) sum += __shfl_xor_sync(~0u, sum, d);
        v[0] = sum;
    } else {
#pragma unroll
        for (int d = 1; d < LANES; d <<= 1)
#pragma unroll
            for (int i = 0; i < 4; ++i) v[i] += __shfl_xor_sync(~0u, v[i], d);
    }
}
