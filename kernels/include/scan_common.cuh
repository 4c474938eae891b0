// Shapes and staging shared by the scan's forward and backward kernels.
//
//   dt = softplus(raw + dt_bias);  h_t = exp(dt·A)·h_{t-1} + (dt·u)·B_t;  y_t = Σ_n h_t·C_t + D·u;  out = y·silu(z)
//
// A channel's states are spread over LANES lanes, SPL states each; a block of four warps takes CB channels of one
// sequence through all time steps, TT at a time. Steps past the end have dt = 0 and u = 0: they change nothing.
#pragma once
#include "storage.cuh"

constexpr int SCAN_THREADS = 128;

// Mirrors `ScanArgs` in mamba-kernels.
struct ScanArgs {
    long long batch, seq_len;
    long long channels, states;
    long long ld_u, ld_raw, ld_z, ld_bc, ld_out;   // elements between tokens
};
static_assert(sizeof(ScanArgs) == 72, "keep in step with ScanArgs in scan/mod.rs");

template <int LANES_, int SPL_, int STEPS> struct ScanTile {
    static constexpr int LANES = LANES_, SPL = SPL_;
    static constexpr int STATES = LANES * SPL;                      // states with padding
    static constexpr int CB = SCAN_THREADS / LANES;                 // channels of a block
    static constexpr int TT = STEPS;
    static constexpr int PER_THREAD = CB * TT / SCAN_THREADS;
    static constexpr int V = PER_THREAD < 1 ? 1 : PER_THREAD < 8 ? PER_THREAD : 8;   // channels of one load
    static constexpr int LOADS = (CB * TT / V + SCAN_THREADS - 1) / SCAN_THREADS;
    static constexpr int PITCH = TT + 4;                            // [channel][time] rows, 16-byte aligned
};

constexpr int SCAN_CHUNK = 16;   // steps between saved states

// This thread's part of a [TT, CB] tile: V channels at one step, LOADS times.
template <typename Tile, typename T> struct Fragment {
    Pack<T, Tile::V> x[Tile::LOADS];
};

template <typename Tile> __device__ __forceinline__ bool part_of_tile(int load, int& step, int& channel) {
    const int i = threadIdx.x + load * SCAN_THREADS;
    step = i / (Tile::CB / Tile::V);
    channel = i % (Tile::CB / Tile::V) * Tile::V;
    return Tile::CB * Tile::TT / Tile::V % SCAN_THREADS == 0 || i < Tile::CB * Tile::TT / Tile::V;
}

template <typename Tile, bool VECTOR, typename T>
__device__ __forceinline__ void fetch(Fragment<Tile, T>& f, const T* base, long long ld, long long t0, long long seq_len, long long c0,
                                      long long channels) {
#pragma unroll
    for (int j = 0; j < Tile::LOADS; ++j) {
        int step, channel;
        const bool mine = part_of_tile<Tile>(j, step, channel);
        const long long left = channels - c0 - channel;
        const int valid = mine && t0 + step < seq_len ? static_cast<int>(left < Tile::V ? (left < 0 ? 0 : left) : Tile::V) : 0;
        f.x[j] = load_pack<VECTOR, Tile::V>(base + (t0 + step) * ld + c0 + channel, valid);
    }
}

// B and C rows of TT steps, widened and padded with zeros to STATES.
template <typename Tile, typename T>
__device__ __forceinline__ void stage_states(float* dst, const T* src, long long ld, long long t0, long long seq_len, int states) {
    for (int i = threadIdx.x; i < Tile::TT * Tile::STATES; i += SCAN_THREADS) {
        const int step = i / Tile::STATES, n = i % Tile::STATES;
        dst[i] = t0 + step < seq_len && n < states ? widen(src[(t0 + step) * ld + n]) : 0.f;
    }
}

template <int N> __device__ __forceinline__ void read_states(float (&r)[N], const float* s) {
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 4) *reinterpret_cast<float4*>(&r[i]) = *reinterpret_cast<const float4*>(s + i);
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) r[i] = s[i];
    }
}

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

// Stores what `sum_lanes` left: row[t .. t + 4].
template <int LANES> __device__ __forceinline__ void store_sums(float* row, int t, const float (&v)[4], int lane) {
    if constexpr (LANES >= 4) {
        if (lane % LANES < 4) row[t + lane % 4] = v[0];
    } else if (lane % LANES == 0) {
        *reinterpret_cast<float4*>(row + t) = make_float4(v[0], v[1], v[2], v[3]);
    }
}
