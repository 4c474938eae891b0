// Selective scan, forward, with softplus, skip and gate.
//
// @variant f32 -DSTORAGE=float
// @variant bf16 -DSTORAGE=__nv_bfloat16
// @variant f16 -DSTORAGE=__half
#include "scan_common.cuh"

template <int LANES, int SPL> using ForwardTile = ScanTile<LANES, SPL, (LANES <= 2 || LANES == 32) ? 16 : 32>;

template <int LANES, int SPL> struct ForwardShared {
    using Tile = ForwardTile<LANES, SPL>;
    alignas(16) float dt[Tile::CB][Tile::PITCH], dtu[Tile::CB][Tile::PITCH], y[Tile::CB][Tile::PITCH];
    alignas(16) float b[Tile::TT * Tile::STATES], c[Tile::TT * Tile::STATES];
    unsigned char reset[Tile::TT];
    int any_reset;
};

// Softplus and the product with u, once a channel and step.
template <int LANES, int SPL, typename T>
__device__ __forceinline__ void stage_steps(ForwardShared<LANES, SPL>& s, const Fragment<ForwardTile<LANES, SPL>, T>& raw,
                                            const Fragment<ForwardTile<LANES, SPL>, T>& u, const float* dt_bias, long long t0, long long c0,
                                            const ScanArgs& g) {
    using Tile = ForwardTile<LANES, SPL>;
#pragma unroll
    for (int j = 0; j < Tile::LOADS; ++j) {
        int step, channel;
        if (!part_of_tile<Tile>(j, step, channel)) continue;
#pragma unroll
        for (int i = 0; i < Tile::V; ++i) {
            const bool exists = t0 + step < g.seq_len && c0 + channel + i < g.channels;
            const float dt = exists ? softplus(widen(raw.x[j].v[i]) + dt_bias[c0 + channel + i]) : 0.f;
            s.dt[channel + i][step] = dt;
            s.dtu[channel + i][step] = exists ? dt * widen(u.x[j].v[i]) : 0.f;
        }
    }
}

// out = (y + D·u)·silu(z).
template <int LANES, int SPL, bool VECTOR, typename T>
__device__ __forceinline__ void write_out(const ForwardShared<LANES, SPL>& s, const Fragment<ForwardTile<LANES, SPL>, T>& u,
                                          const Fragment<ForwardTile<LANES, SPL>, T>& z, const float* d, T* out, long long t0, long long c0,
                                          const ScanArgs& g) {
    using Tile = ForwardTile<LANES, SPL>;
#pragma unroll
    for (int j = 0; j < Tile::LOADS; ++j) {
        int step, channel;
        if (!part_of_tile<Tile>(j, step, channel) || t0 + step >= g.seq_len || c0 + channel >= g.channels) continue;
        Pack<T, Tile::V> r;
        const int valid = static_cast<int>(min(static_cast<long long>(Tile::V), g.channels - c0 - channel));
#pragma unroll
        for (int i = 0; i < Tile::V; ++i) {
            const float gate = widen(z.x[j].v[i]);
            const float skip = i < valid ? d[c0 + channel + i] : 0.f;
            r.v[i] = narrow<T>((s.y[channel + i][step] + skip * widen(u.x[j].v[i])) * gate * sigmoid(gate));
        }
        store_pack<VECTOR, Tile::V>(out + (t0 + step) * g.ld_out + c0 + channel, r, valid);
    }
}

// Sequences start at `h0` (null: zero). `reset` (null: none) marks first tokens of documents. `saved` (null: not saved)
// gets the state before every 16th step as [batch, ceil(seq_len / 16), channels, STATES].
template <typename T, int LANES, int SPL, bool VECTOR>
__global__ __launch_bounds__(SCAN_THREADS, 3) void scan_forward(
    const T* __restrict__ u, const T* __restrict__ raw, const T* __restrict__ z, const T* __restrict__ b, const T* __restrict__ c,
    const float* __restrict__ neg_a, const float* __restrict__ d, const float* __restrict__ dt_bias,
    const unsigned char* __restrict__ reset, const float* __restrict__ h0, T* __restrict__ out, float* __restrict__ h_last,
    float* __restrict__ saved, ScanArgs g) {
    using Tile = ForwardTile<LANES, SPL>;
    __shared__ ForwardShared<LANES, SPL> s;
    const long long blocks = (g.channels + Tile::CB - 1) / Tile::CB;
    const long long batch = blockIdx.x / blocks, c0 = (blockIdx.x - batch * blocks) * Tile::CB;
    const int lane = threadIdx.x % 32, part = threadIdx.x % LANES, row = threadIdx.x / LANES;
    const long long channel = c0 + row;
    const bool live = channel < g.channels;
    const long long token0 = batch * g.seq_len;
    u += token0 * g.ld_u, raw += token0 * g.ld_raw, z += token0 * g.ld_z, out += token0 * g.ld_out;
    b += token0 * g.ld_bc, c += token0 * g.ld_bc;

    float a2[SPL], h[SPL];
#pragma unroll
    for (int i = 0; i < SPL; ++i) {
        const int n = part * SPL + i;
        const bool exists = live && n < g.states;
        a2[i] = exists ? neg_a[channel * g.states + n] * LOG2E : 0.f;
        h[i] = exists && h0 ? h0[(batch * g.channels + channel) * g.states + n] : 0.f;
    }
    Fragment<Tile, T> fu, fraw, fz;
    fetch<Tile, VECTOR>(fu, u, g.ld_u, 0, g.seq_len, c0, g.channels);
    fetch<Tile, VECTOR>(fraw, raw, g.ld_raw, 0, g.seq_len, c0, g.channels);
    for (long long t0 = 0; t0 < g.seq_len; t0 += Tile::TT) {
        __syncthreads();
        if (threadIdx.x == 0) s.any_reset = 0;
        stage_steps<LANES, SPL>(s, fraw, fu, dt_bias, t0, c0, g);
        stage_states<Tile>(s.b, b, g.ld_bc, t0, g.seq_len, static_cast<int>(g.states));
        stage_states<Tile>(s.c, c, g.ld_bc, t0, g.seq_len, static_cast<int>(g.states));
        fetch<Tile, VECTOR>(fz, z, g.ld_z, t0, g.seq_len, c0, g.channels);
        __syncthreads();
        if (reset && threadIdx.x < Tile::TT) {
            const long long t = t0 + threadIdx.x;
            s.reset[threadIdx.x] = t < g.seq_len ? reset[token0 + t] : 0;
            if (s.reset[threadIdx.x]) s.any_reset = 1;
        }
        if (reset) __syncthreads();
        const bool any_reset = reset && s.any_reset;
        Fragment<Tile, T> next_u, next_raw;
        fetch<Tile, VECTOR>(next_u, u, g.ld_u, t0 + Tile::TT, g.seq_len, c0, g.channels);
        fetch<Tile, VECTOR>(next_raw, raw, g.ld_raw, t0 + Tile::TT, g.seq_len, c0, g.channels);

#pragma unroll 1
        for (int t = 0; t < Tile::TT; t += 4) {
            if (saved && t % SCAN_CHUNK == 0 && t0 + t < g.seq_len && live) {
                const long long chunks = (g.seq_len + SCAN_CHUNK - 1) / SCAN_CHUNK;
                float* p = saved + ((batch * chunks + (t0 + t) / SCAN_CHUNK) * g.channels + channel) * Tile::STATES + part * SPL;
#pragma unroll
                for (int i = 0; i < SPL; i += 4) *reinterpret_cast<float4*>(p + i) = make_float4(h[i], h[i + 1], h[i + 2], h[i + 3]);
            }
            float dt[4], dtu[4], y[4];
            read_states(dt, &s.dt[row][t]);
            read_states(dtu, &s.dtu[row][t]);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                float vb[SPL], vc[SPL];
                read_states(vb, &s.b[(t + k) * Tile::STATES + part * SPL]);
                read_states(vc, &s.c[(t + k) * Tile::STATES + part * SPL]);
                if (any_reset && s.reset[t + k]) {
#pragma unroll
                    for (int i = 0; i < SPL; ++i) h[i] = 0.f;
                }
                y[k] = 0.f;
#pragma unroll
                for (int i = 0; i < SPL; ++i) {
                    h[i] = fmaf(exp2_fast(dt[k] * a2[i]), h[i], dtu[k] * vb[i]);
                    y[k] = fmaf(h[i], vc[i], y[k]);
                }
            }
            sum_lanes<LANES>(y, lane);
            store_sums<LANES>(s.y[row], t, y, lane);
        }
        __syncthreads();
        write_out<LANES, SPL, VECTOR>(s, fu, fz, d, out, t0, c0, g);
        fu = next_u, fraw = next_raw;
    }
    if (live && h_last) {
#pragma unroll
        for (int i = 0; i < SPL; ++i) {
            const int n = part * SPL + i;
            if (n < g.states) h_last[(batch * g.channels + channel) * g.states + n] = h[i];
        }
    }
}

template __global__ void scan_forward<STORAGE, 1, 4, true>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, float*, ScanArgs);
template __global__ void scan_forward<STORAGE, 1, 4, false>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, float*, ScanArgs);
template __global__ void scan_forward<STORAGE, 2, 4, true>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, float*, ScanArgs);
template __global__ void scan_forward<STORAGE, 2, 4, false>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, float*, ScanArgs);
template __global__ void scan_forward<STORAGE, 4, 4, true>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, float*, ScanArgs);
template __global__ void scan_forward<STORAGE, 4, 4, false>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, float*, ScanArgs);
template __global__ void scan_forward<STORAGE, 8, 4, true>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, float*, ScanArgs);
template __global__ void scan_forward<STORAGE, 8, 4, false>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, float*, ScanArgs);
template __global__ void scan_forward<STORAGE, 16, 4, true>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, float*, ScanArgs);
template __global__ void scan_forward<STORAGE, 16, 4, false>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, float*, ScanArgs);
template __global__ void scan_forward<STORAGE, 32, 4, true>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, float*, ScanArgs);
template __global__ void scan_forward<STORAGE, 32, 4, false>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, float*, ScanArgs);
template __global__ void scan_forward<STORAGE, 32, 8, true>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, float*, ScanArgs);
template __global__ void scan_forward<STORAGE, 32, 8, false>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, float*, ScanArgs);
