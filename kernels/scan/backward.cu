// Selective scan, backward: the exact adjoint, except that nothing flows into the state before the window.
//
// A block walks its sequence's 16-step chunks from the last to the first. In each it replays the states from the saved one,
// keeping every decay in registers, so that an exponential is taken once; then it runs the adjoint recurrence. Sums over
// channels (for B and C) are made over the warp's channels by a halving butterfly, then over the block's warps, and leave
// the block as one partial a channel block; `scan_fold_states` adds those in channel order.
//
// @variant f32 -DSTORAGE=float
// @variant bf16 -DSTORAGE=__nv_bfloat16
// @variant f16 -DSTORAGE=__half
#include "scan_common.cuh"

constexpr int WARPS = SCAN_THREADS / 32;

template <typename Tile> struct BackwardShared {
    static constexpr int FOLD = Tile::STATES <= 64 ? SCAN_CHUNK : 4;   // steps whose B and C sums wait for the other warps
    alignas(16) float dt[Tile::CB][Tile::PITCH], dtu[Tile::CB][Tile::PITCH], dy[Tile::CB][Tile::PITCH];
    alignas(16) float y[Tile::CB][Tile::PITCH], d_dt[Tile::CB][Tile::PITCH], d_dtu[Tile::CB][Tile::PITCH];
    alignas(16) float b[Tile::TT * Tile::STATES], c[Tile::TT * Tile::STATES];
    alignas(16) float h[SCAN_CHUNK][SCAN_THREADS * Tile::SPL];
    float sums[WARPS][FOLD][2 * Tile::STATES];
    unsigned char reset[SCAN_CHUNK];
    int any_reset;
};

// Pointers of one block's sequence and channels.
template <typename T> struct Streams {
    const T *u, *raw, *z, *d_out;
    T *d_u, *d_raw, *d_z;
};

template <typename Tile, typename T> struct Loaded {
    Fragment<Tile, T> u, raw, z, d_out;
};

template <typename Tile, bool VECTOR, typename T>
__device__ __forceinline__ void fetch_all(Loaded<Tile, T>& f, const Streams<T>& p, long long t0, long long c0, const ScanArgs& g) {
    fetch<Tile, VECTOR>(f.u, p.u, g.ld_u, t0, g.seq_len, c0, g.channels);
    fetch<Tile, VECTOR>(f.raw, p.raw, g.ld_raw, t0, g.seq_len, c0, g.channels);
    fetch<Tile, VECTOR>(f.z, p.z, g.ld_z, t0, g.seq_len, c0, g.channels);
    fetch<Tile, VECTOR>(f.d_out, p.d_out, g.ld_out, t0, g.seq_len, c0, g.channels);
}

template <typename Tile, typename T>
__device__ __forceinline__ void stage_steps(BackwardShared<Tile>& s, const Loaded<Tile, T>& f, const float* dt_bias, long long t0,
                                            long long c0, const ScanArgs& g) {
#pragma unroll
    for (int j = 0; j < Tile::LOADS; ++j) {
        int step, channel;
        if (!part_of_tile<Tile>(j, step, channel)) continue;
#pragma unroll
        for (int i = 0; i < Tile::V; ++i) {
            const bool exists = t0 + step < g.seq_len && c0 + channel + i < g.channels;
            const float dt = exists ? softplus(widen(f.raw.x[j].v[i]) + dt_bias[c0 + channel + i]) : 0.f;
            const float z = widen(f.z.x[j].v[i]);
            s.dt[channel + i][step] = dt;
            s.dtu[channel + i][step] = exists ? dt * widen(f.u.x[j].v[i]) : 0.f;
            s.dy[channel + i][step] = exists ? widen(f.d_out.x[j].v[i]) * z * sigmoid(z) : 0.f;
        }
    }
}

// Gradients that belong to one channel and step; sums of D and Δ bias stay in registers.
template <typename Tile, bool VECTOR, typename T>
__device__ __forceinline__ void write_steps(const BackwardShared<Tile>& s, const Loaded<Tile, T>& f, const Streams<T>& p,
                                            const float* dt_bias, const float* d, float (&sum_d)[Tile::LOADS][Tile::V],
                                            float (&sum_bias)[Tile::LOADS][Tile::V], long long t0, long long c0, const ScanArgs& g) {
#pragma unroll
    for (int j = 0; j < Tile::LOADS; ++j) {
        int step, channel;
        if (!part_of_tile<Tile>(j, step, channel) || t0 + step >= g.seq_len || c0 + channel >= g.channels) continue;
        const long long at = c0 + channel;
        const int valid = static_cast<int>(min(static_cast<long long>(Tile::V), g.channels - at));
        Pack<T, Tile::V> d_u, d_raw, d_z;
#pragma unroll
        for (int i = 0; i < Tile::V; ++i) {
            const float skip = i < valid ? d[at + i] : 0.f, bias = i < valid ? dt_bias[at + i] : 0.f;
            const float u = widen(f.u.x[j].v[i]), z = widen(f.z.x[j].v[i]), raw = widen(f.raw.x[j].v[i]) + bias;
            const float dy = s.dy[channel + i][step], d_dtu = s.d_dtu[channel + i][step], dt = s.dt[channel + i][step];
            const float gate = sigmoid(z), y = s.y[channel + i][step] + skip * u;
            const float d_dt = s.d_dt[channel + i][step] + d_dtu * u;
            const float slope = raw > 20.f ? d_dt : d_dt * sigmoid(raw);
            d_z.v[i] = narrow<T>(widen(f.d_out.x[j].v[i]) * y * gate * (1.f + z * (1.f - gate)));
            d_u.v[i] = narrow<T>(d_dtu * dt + skip * dy);
            d_raw.v[i] = narrow<T>(slope);
            sum_d[j][i] += dy * u;
            sum_bias[j][i] += slope;
        }
        store_pack<VECTOR, Tile::V>(p.d_u + (t0 + step) * g.channels + at, d_u, valid);
        store_pack<VECTOR, Tile::V>(p.d_raw + (t0 + step) * g.channels + at, d_raw, valid);
        store_pack<VECTOR, Tile::V>(p.d_z + (t0 + step) * g.ld_z + at, d_z, valid);
    }
}

// Sums N values over the rows of a warp, whose lanes lie DISTANCE apart; each exchange halves what a lane holds. `index`
// ends as the position of v[0] among the N.
template <int N, int DISTANCE> __device__ __forceinline__ void sum_rows(float* v, int lane, int& index) {
    if constexpr (DISTANCE < 32) {
        if constexpr (N > 1) {
            const bool upper = lane & DISTANCE;
#pragma unroll
            for (int i = 0; i < N / 2; ++i) {
                const float give = upper ? v[i] : v[i + N / 2], keep = upper ? v[i + N / 2] : v[i];
                v[i] = keep + __shfl_xor_sync(~0u, give, DISTANCE);
            }
            index += upper ? N / 2 : 0;
            sum_rows<N / 2, DISTANCE * 2>(v, lane, index);
        } else {
            v[0] += __shfl_xor_sync(~0u, v[0], DISTANCE);
            sum_rows<1, DISTANCE * 2>(v, lane, index);
        }
    }
}

// One block: the warps' sums of FOLD steps from `t` on, to partial[channel block][token][2 · STATES].
template <typename Tile>
__device__ __forceinline__ void fold_warps(const BackwardShared<Tile>& s, float* partial, long long t, long long seq_len) {
    constexpr int FOLD = BackwardShared<Tile>::FOLD, ROW = 2 * Tile::STATES;
    for (int i = threadIdx.x; i < FOLD * ROW; i += SCAN_THREADS) {
        const int step = i / ROW, n = i % ROW;
        float sum = s.sums[0][step][n];
#pragma unroll
        for (int w = 1; w < WARPS; ++w) sum += s.sums[w][step][n];
        if (t + step < seq_len) partial[(t + step) * ROW + n] = sum;
    }
}

template <typename T, int LANES, int SPL, bool VECTOR>
__global__ __launch_bounds__(SCAN_THREADS, SPL == 8 || LANES == 1 ? 1 : LANES == 2 ? 2 : 3) void scan_backward(
    const T* __restrict__ u, const T* __restrict__ raw, const T* __restrict__ z, const T* __restrict__ b, const T* __restrict__ c,
    const float* __restrict__ neg_a, const float* __restrict__ d, const float* __restrict__ dt_bias,
    const unsigned char* __restrict__ reset, const float* __restrict__ saved, const T* __restrict__ d_out, T* __restrict__ d_u,
    T* __restrict__ d_raw, T* __restrict__ d_z, float* __restrict__ partial_bc, float* __restrict__ partial_a,
    float* __restrict__ partial_d, float* __restrict__ partial_bias, ScanArgs g) {
    using Tile = ScanTile<LANES, SPL, SCAN_CHUNK>;
    using Shared = BackwardShared<Tile>;
    constexpr int FOLD = Shared::FOLD;
    extern __shared__ __align__(16) unsigned char memory[];
    Shared& s = *reinterpret_cast<Shared*>(memory);
    const long long blocks = (g.channels + Tile::CB - 1) / Tile::CB;
    const long long batch = blockIdx.x / blocks, block = blockIdx.x - batch * blocks, c0 = block * Tile::CB;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = threadIdx.x % LANES, row = threadIdx.x / LANES;
    const long long channel = c0 + row, token0 = batch * g.seq_len;
    const bool live = channel < g.channels;
    const Streams<T> p = {u + token0 * g.ld_u, raw + token0 * g.ld_raw, z + token0 * g.ld_z, d_out + token0 * g.ld_out,
                          d_u + token0 * g.channels, d_raw + token0 * g.channels, d_z + token0 * g.ld_z};
    b += token0 * g.ld_bc, c += token0 * g.ld_bc;
    partial_bc += (block * g.batch + batch) * g.seq_len * 2 * Tile::STATES;

    float a[SPL], dh[SPL] = {}, d_a[SPL] = {};
#pragma unroll
    for (int i = 0; i < SPL; ++i) {
        const int n = part * SPL + i;
        a[i] = live && n < g.states ? neg_a[channel * g.states + n] : 0.f;
    }
    float sum_d[Tile::LOADS][Tile::V] = {}, sum_bias[Tile::LOADS][Tile::V] = {};
    const long long chunks = (g.seq_len + SCAN_CHUNK - 1) / SCAN_CHUNK;
    Loaded<Tile, T> f;
    fetch_all<Tile, VECTOR>(f, p, (chunks - 1) * SCAN_CHUNK, c0, g);
    for (long long chunk = chunks - 1; chunk >= 0; --chunk) {
        const long long t0 = chunk * SCAN_CHUNK;
        __syncthreads();
        stage_steps<Tile>(s, f, dt_bias, t0, c0, g);
        stage_states<Tile>(s.b, b, g.ld_bc, t0, g.seq_len, static_cast<int>(g.states));
        stage_states<Tile>(s.c, c, g.ld_bc, t0, g.seq_len, static_cast<int>(g.states));
        if (threadIdx.x == 0) {
            s.any_reset = 0;
            for (int t = 0; reset && t < SCAN_CHUNK; ++t) {
                s.reset[t] = t0 + t < g.seq_len ? reset[token0 + t0 + t] : 0;
                s.any_reset |= s.reset[t];
            }
        }
        float start[SPL] = {};
        if (live) read_states(start, saved + ((batch * chunks + chunk) * g.channels + channel) * Tile::STATES + part * SPL);
        __syncthreads();
        const bool any_reset = s.any_reset;

        float decay[SCAN_CHUNK][SPL], h[SPL];
#pragma unroll
        for (int i = 0; i < SPL; ++i) h[i] = start[i];
#pragma unroll
        for (int t = 0; t < SCAN_CHUNK; t += 4) {
            float dt[4], dtu[4], y[4];
            read_states(dt, &s.dt[row][t]);
            read_states(dtu, &s.dtu[row][t]);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                float vb[SPL], vc[SPL];
                read_states(vb, &s.b[(t + k) * Tile::STATES + part * SPL]);
                read_states(vc, &s.c[(t + k) * Tile::STATES + part * SPL]);
                const bool cut = any_reset && s.reset[t + k];
                y[k] = 0.f;
#pragma unroll
                for (int i = 0; i < SPL; ++i) {
                    decay[t + k][i] = exp2_fast(dt[k] * (a[i] * LOG2E));
                    h[i] = fmaf(decay[t + k][i], cut ? 0.f : h[i], dtu[k] * vb[i]);
                    y[k] = fmaf(h[i], vc[i], y[k]);
                }
#pragma unroll
                for (int i = 0; i < SPL; i += 4)
                    *reinterpret_cast<float4*>(&s.h[t + k][(i / 4 * SCAN_THREADS + threadIdx.x) * 4]) =
                        make_float4(h[i], h[i + 1], h[i + 2], h[i + 3]);
            }
            sum_lanes<LANES>(y, lane);
            store_sums<LANES>(s.y[row], t, y, lane);
        }
#pragma unroll
        for (int t = SCAN_CHUNK - 4; t >= 0; t -= 4) {
            float dt[4], dtu[4], dy[4], d_dt[4], d_dtu[4];
            read_states(dt, &s.dt[row][t]);
            read_states(dtu, &s.dtu[row][t]);
            read_states(dy, &s.dy[row][t]);
#pragma unroll
            for (int k = 3; k >= 0; --k) {
                float vb[SPL], vc[SPL], before[SPL], sums[2 * SPL];
                read_states(vb, &s.b[(t + k) * Tile::STATES + part * SPL]);
                read_states(vc, &s.c[(t + k) * Tile::STATES + part * SPL]);
                const bool cut = any_reset && s.reset[t + k];
                // `h` is the state after this step; the state before it comes from the step before, or starts the chunk.
#pragma unroll
                for (int i = 0; i < SPL; i += 4) {
                    if (t + k > 0)
                        *reinterpret_cast<float4*>(&before[i]) =
                            *reinterpret_cast<const float4*>(&s.h[t + k - 1][(i / 4 * SCAN_THREADS + threadIdx.x) * 4]);
                    else
                        before[i] = start[i], before[i + 1] = start[i + 1], before[i + 2] = start[i + 2], before[i + 3] = start[i + 3];
                }
                d_dt[k] = 0.f, d_dtu[k] = 0.f;
#pragma unroll
                for (int i = 0; i < SPL; ++i) {
                    dh[i] = fmaf(dy[k], vc[i], dh[i]);
                    sums[i] = dh[i] * dtu[k];
                    sums[SPL + i] = dy[k] * h[i];
                    d_dtu[k] = fmaf(dh[i], vb[i], d_dtu[k]);
                    const float through = dh[i] * decay[t + k][i];
                    const float slope = cut ? 0.f : through * before[i];
                    d_dt[k] = fmaf(slope, a[i], d_dt[k]);
                    d_a[i] = fmaf(slope, dt[k], d_a[i]);
                    dh[i] = cut ? 0.f : through;
                    h[i] = before[i];
                }
                int index = 0;
                sum_rows<2 * SPL, LANES>(sums, lane, index);
                constexpr int ROWS = 32 / LANES, KEPT = 2 * SPL > ROWS ? 2 * SPL / ROWS : 1;
                if (ROWS <= 2 * SPL || (lane / LANES) / (2 * SPL) == 0) {
#pragma unroll
                    for (int i = 0; i < KEPT; ++i) {
                        const int which = (index + i) / SPL, n = part * SPL + (index + i) % SPL;
                        s.sums[warp][(t + k) % FOLD][which * Tile::STATES + n] = sums[i];
                    }
                }
            }
            sum_lanes<LANES>(d_dt, lane);
            sum_lanes<LANES>(d_dtu, lane);
            store_sums<LANES>(s.d_dt[row], t, d_dt, lane);
            store_sums<LANES>(s.d_dtu[row], t, d_dtu, lane);
            if (t % FOLD == 0) {
                __syncthreads();
                fold_warps<Tile>(s, partial_bc, t0 + t, g.seq_len);
                if (FOLD < SCAN_CHUNK) __syncthreads();
            }
        }
        write_steps<Tile, VECTOR>(s, f, p, dt_bias, d, sum_d, sum_bias, t0, c0, g);
        if (chunk > 0) fetch_all<Tile, VECTOR>(f, p, t0 - SCAN_CHUNK, c0, g);
    }
    if (live) {
#pragma unroll
        for (int i = 0; i < SPL; ++i) {
            const int n = part * SPL + i;
            if (n < g.states) partial_a[(batch * g.channels + channel) * g.states + n] = d_a[i] * a[i];
        }
    }
    // Channel sums of the threads that shared a channel, in step order.
    __syncthreads();
#pragma unroll
    for (int j = 0; j < Tile::LOADS; ++j) {
        int step, first;
        if (!part_of_tile<Tile>(j, step, first)) continue;
#pragma unroll
        for (int i = 0; i < Tile::V; ++i) s.y[first + i][step] = sum_d[j][i], s.dy[first + i][step] = sum_bias[j][i];
    }
    __syncthreads();
    if (threadIdx.x < Tile::CB && c0 + threadIdx.x < g.channels) {
        float total_d = 0.f, total_bias = 0.f;
        for (int t = 0; t < SCAN_CHUNK; ++t) total_d += s.y[threadIdx.x][t], total_bias += s.dy[threadIdx.x][t];
        partial_d[batch * g.channels + c0 + threadIdx.x] = total_d;
        partial_bias[batch * g.channels + c0 + threadIdx.x] = total_bias;
    }
}

template __global__ void scan_backward<STORAGE, 1, 4, true>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, STORAGE*, STORAGE*, STORAGE*, float*, float*, float*, float*, ScanArgs);
template __global__ void scan_backward<STORAGE, 1, 4, false>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, STORAGE*, STORAGE*, STORAGE*, float*, float*, float*, float*, ScanArgs);
template __global__ void scan_backward<STORAGE, 2, 4, true>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, STORAGE*, STORAGE*, STORAGE*, float*, float*, float*, float*, ScanArgs);
template __global__ void scan_backward<STORAGE, 2, 4, false>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, STORAGE*, STORAGE*, STORAGE*, float*, float*, float*, float*, ScanArgs);
template __global__ void scan_backward<STORAGE, 4, 4, true>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, STORAGE*, STORAGE*, STORAGE*, float*, float*, float*, float*, ScanArgs);
template __global__ void scan_backward<STORAGE, 4, 4, false>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, STORAGE*, STORAGE*, STORAGE*, float*, float*, float*, float*, ScanArgs);
template __global__ void scan_backward<STORAGE, 8, 4, true>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, STORAGE*, STORAGE*, STORAGE*, float*, float*, float*, float*, ScanArgs);
template __global__ void scan_backward<STORAGE, 8, 4, false>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, STORAGE*, STORAGE*, STORAGE*, float*, float*, float*, float*, ScanArgs);
template __global__ void scan_backward<STORAGE, 16, 4, true>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, STORAGE*, STORAGE*, STORAGE*, float*, float*, float*, float*, ScanArgs);
template __global__ void scan_backward<STORAGE, 16, 4, false>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, STORAGE*, STORAGE*, STORAGE*, float*, float*, float*, float*, ScanArgs);
template __global__ void scan_backward<STORAGE, 32, 4, true>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, STORAGE*, STORAGE*, STORAGE*, float*, float*, float*, float*, ScanArgs);
template __global__ void scan_backward<STORAGE, 32, 4, false>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, STORAGE*, STORAGE*, STORAGE*, float*, float*, float*, float*, ScanArgs);
template __global__ void scan_backward<STORAGE, 32, 8, true>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, STORAGE*, STORAGE*, STORAGE*, float*, float*, float*, float*, ScanArgs);
template __global__ void scan_backward<STORAGE, 32, 8, false>(const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, STORAGE*, STORAGE*, STORAGE*, float*, float*, float*, float*, ScanArgs);
