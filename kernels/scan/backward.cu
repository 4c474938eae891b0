// Selective scan, backward: the exact adjoint, except that nothing flows into the state before the window.
//
// A block walks its sequence from the last half of a chunk (8 steps) to the first. Three warps run the recurrences: they
// replay a half's states, keeping states and decays in registers, then run the adjoint, in which they compute the next half's
// decays besides: the special-function unit would be the bottleneck of a replay alone. States are saved every 16 steps
// only, so the lower half of a chunk is replayed twice. The fourth warp stages operands up to four halves ahead and turns
// what the three leave into gradients behind; named barriers hand the halves over.
//
// A thread owns CHANNELS channels and SPL states of each. Its registers hold the states in an order that depends on its row
// in the warp (state i ^ role), so that sums over channels exchange registers of fixed number, without selects; the same
// holds for the two channels (channel k ^ swap) in sums over states. What is left of the sums meets in shared memory.
// Sums for B and C leave the block as one partial a channel block; `scan_fold_states` adds those in channel order.
//
// @variant f32 -DSTORAGE=float
// @variant bf16 -DSTORAGE=__nv_bfloat16
// @variant f16 -DSTORAGE=__half
#include "scan_common.cuh"
#include "vectors.cuh"

constexpr int WARPS = 3, HALF = SCAN_CHUNK / 2;   // warps of recurrences; steps handed over at once

template <int LANES_, int SPL_> struct BackwardTile {
    static constexpr int LANES = LANES_, SPL = SPL_, STATES = LANES * SPL;
    static constexpr int CHANNELS = 8 / SPL;                                       // of a thread
    static constexpr int ROWS = 32 / LANES, CB = WARPS * ROWS * CHANNELS;          // rows of a warp, channels of a block
    static constexpr int ROLES = ROWS < 4 ? ROWS : 4;                              // orders of a thread's states
    static constexpr int KEPT = SPL / ROLES, PARTS = WARPS * ROWS / ROLES;         // sums a thread keeps; partials of a block
    static constexpr int LANE_PARTS = LANES / CHANNELS;                            // partials of a channel's sum over states
    static constexpr int V = CB % 4 == 0 ? 4 : CB % 2 == 0 ? 2 : 1;                // channels of a staged item
    static constexpr int GROUPS = CB / V, ITEMS = HALF * GROUPS;
    static constexpr int SPAN = GROUPS / WARPS;                                    // lanes of the staging warp at one step
    // Pitches that keep the accesses free of bank conflicts at 16 states.
    static constexpr int PAIR = V < 2 ? 1 : 2, X_STEP = CB + 8;                    // [step][pair of item][item][channel of pair]
    static constexpr int Y_PITCH = V * LANE_PARTS * 2 + 8, Y_STEP = GROUPS * Y_PITCH + 4;
    static constexpr int Q_PITCH = V * LANE_PARTS, Q_STEP = GROUPS * Q_PITCH + 4;
};

// States with the padding that the forward gives them.
template <typename Tile> __device__ __forceinline__ int padded_states(const ScanArgs& g) {
    return g.states <= 4 ? 4 : g.states <= 8 ? 8 : Tile::STATES;
}

// Operands of half a chunk.
template <typename Tile> struct HalfIn {
    alignas(16) float2 dt[HALF * Tile::X_STEP];                                    // Δ for decays, Δ·u
    alignas(16) float dy[HALF * Tile::CB], u[HALF * Tile::CB], step[HALF * Tile::CB];   // [step][channel]; `step` is Δ
    alignas(16) float to_z[HALF * Tile::CB], to_raw[HALF * Tile::CB];              // slopes of the gate and of softplus
    alignas(16) float b[HALF][Tile::STATES / 4][Tile::ROLES * 4], c[HALF][Tile::STATES / 4][Tile::ROLES * 4];   // in every order

    __device__ __forceinline__ static int at(int step, int channel) {
        constexpr int V = Tile::V, PAIR = Tile::PAIR;
        return step * Tile::X_STEP + (channel % V / PAIR * Tile::GROUPS + channel / V) * PAIR + channel % PAIR;
    }
};

template <typename Tile> struct HalfOut {
    alignas(16) float y[HALF * Tile::Y_STEP];                                      // [step][item][part][channel]: y, Σ slope·a
    alignas(16) float q[HALF * Tile::Q_STEP];                                      // likewise Σ dh·B
    alignas(16) float2 bc[HALF][Tile::PARTS][Tile::STATES + 8];
};

template <typename Tile> struct BackwardShared {
    HalfIn<Tile> in[4];                                                            // upper, lower, next upper, next lower
    HalfOut<Tile> out[2];                                                          // upper, lower
};

enum Barrier { IN_FULL = 1, OUT_FULL = 5, OUT_EMPTY = 7 };   // four, two, two

__device__ __forceinline__ void wait(int barrier) { asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory"); }
__device__ __forceinline__ void signal(int barrier) { asm volatile("bar.arrive %0, 128;" ::"r"(barrier) : "memory"); }

// Pointers of one sequence.
template <typename T> struct Streams {
    const T *u, *raw, *z, *b, *c, *d_out;
    const unsigned char* reset;
    T *d_u, *d_raw, *d_z;
    float* partial_bc;
    int pitch;   // states of a row of partial_bc
};

// What the staging warp has in flight for half a chunk: a lane has WARPS items of one step, SPAN items apart.
template <typename Tile, typename T> struct Loaded {
    static constexpr int BC = HALF * Tile::STATES / 4;          // groups of four states of B, and of C
    static constexpr int BC_LOADS = (BC + 31) / 32;
    static constexpr bool BC_AHEAD = BC_LOADS <= 8;             // else they would take too many registers
    Raw<T, Tile::V> u[WARPS], raw[WARPS], z[WARPS], d_out[WARPS];
    Raw<T, 4> b[BC_AHEAD ? BC_LOADS : 1], c[BC_AHEAD ? BC_LOADS : 1];
    bool exists, cut;                                           // the step is inside the sequence; it starts a document
    int t0;
};

template <typename Tile> __device__ __forceinline__ int item_of(int lane, int j) {
    return lane / Tile::SPAN * Tile::GROUPS + lane % Tile::SPAN + Tile::SPAN * j;
}

// One of a lane's groups of states, into f.b[to] and f.c[to].
template <typename Tile, bool VECTOR, typename T>
__device__ __forceinline__ void fetch_states(Loaded<Tile, T>& f, const Streams<T>& p, int to, int j, const ScanArgs& g, int lane) {
    const int i = lane + 32 * j, t = f.t0 + i / (Tile::STATES / 4), n = i % (Tile::STATES / 4) * 4;
    const int valid = i < Loaded<Tile, T>::BC && f.t0 >= 0 && t < g.seq_len ? static_cast<int>(g.states) - n : 0;
    f.b[to] = load_raw<VECTOR, 4>(p.b + t * g.ld_bc + n, valid), f.c[to] = load_raw<VECTOR, 4>(p.c + t * g.ld_bc + n, valid);
}

template <typename Tile, bool VECTOR, typename T>
__device__ __forceinline__ void fetch_half(Loaded<Tile, T>& f, const Streams<T>& p, int t0, long long c0, const ScanArgs& g, int lane) {
    using F = Loaded<Tile, T>;
    const int step = lane / Tile::SPAN, t = t0 + step;
    const long long first = c0 + lane % Tile::SPAN * Tile::V;
    f.exists = step < HALF && t >= 0 && t < g.seq_len;
    f.cut = p.reset && f.exists && p.reset[t];
    const T *u = p.u + t * g.ld_u + first, *raw = p.raw + t * g.ld_raw + first, *z = p.z + t * g.ld_z + first;
    const T* d_out = p.d_out + t * g.ld_out + first;
    const int left = f.exists ? static_cast<int>(min(g.channels - first, static_cast<long long>(Tile::CB))) : 0;
#pragma unroll
    for (int j = 0; j < WARPS; ++j) {
        const int offset = j * Tile::SPAN * Tile::V, valid = min(left - offset, Tile::V);
        f.u[j] = load_raw<VECTOR, Tile::V>(u + offset, valid);
        f.raw[j] = load_raw<VECTOR, Tile::V>(raw + offset, valid);
        f.z[j] = load_raw<VECTOR, Tile::V>(z + offset, valid);
        f.d_out[j] = load_raw<VECTOR, Tile::V>(d_out + offset, valid);
    }
    f.t0 = t0;
    if constexpr (F::BC_AHEAD) {
#pragma unroll
        for (int j = 0; j < F::BC_LOADS; ++j) fetch_states<Tile, VECTOR>(f, p, j, j, g, lane);
    }
}

// x[i] becomes x[i ^ key], for key < KEYS.
template <int KEYS, int N> __device__ __forceinline__ void exchange(float (&x)[N], int key) {
#pragma unroll
    for (int m = 1; m < KEYS; m <<= 1)
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (!(i & m)) {
                const float low = x[i], high = x[i + m];
                x[i] = key & m ? high : low, x[i + m] = key & m ? low : high;
            }
}

// softplus(x), as `softplus` in storage.cuh, and its slope.
__device__ __forceinline__ float softplus_slope(float x, float& slope) {
    const float e = exp2_fast(-LOG2E * fabsf(x));
    const float s = __fdividef(e, 2.f + e), q = s * s;
    float sum = fmaf(q, 2.f / 13.f, 2.f / 11.f);
    sum = fmaf(q, sum, 2.f / 9.f);
    sum = fmaf(q, sum, 2.f / 7.f);
    sum = fmaf(q, sum, 2.f / 5.f);
    sum = fmaf(q, sum, 2.f / 3.f);
    sum = fmaf(q, sum, 2.f);
    slope = x > 20.f ? 1.f : __fdividef(x > 0.f ? 1.f : e, 1.f + e);
    return x > 20.f ? x : (x > 0.f ? x : 0.f) + s * sum;
}

// In steps that start a document the recurrences get a Δ that makes every decay 0.
constexpr float CUT = 1e30f;

// A group of four states of B and C in every order.
template <typename Tile, typename T>
__device__ __forceinline__ void stage_states(HalfIn<Tile>& s, const Raw<T, 4>& from_b, const Raw<T, 4>& from_c, int j, int lane) {
    constexpr int GROUPS = Tile::STATES / 4;
    const int i = lane + 32 * j, at = i / GROUPS, n = i % GROUPS;
    if (HALF * GROUPS % 32 != 0 && i >= HALF * GROUPS) return;
    // A lane writes the orders in an order of its own: neighbours then meet different banks.
    const int key = (lane ^ (lane >> 2)) & (Tile::ROLES - 1);
    float b[4], c[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) b[k] = from_b[k], c[k] = from_c[k];
    exchange<Tile::ROLES>(b, key), exchange<Tile::ROLES>(c, key);
#pragma unroll
    for (int r = 0; r < Tile::ROLES; ++r) {
        const float rb[4] = {b[r], b[r ^ 1], b[r ^ 2], b[r ^ 3]}, rc[4] = {c[r], c[r ^ 1], c[r ^ 2], c[r ^ 3]};
        write(&s.b[at][n][(r ^ key) * 4], rb), write(&s.c[at][n][(r ^ key) * 4], rc);
    }
}

template <typename Tile, bool VECTOR, typename T>
__device__ __forceinline__ void stage_half(HalfIn<Tile>& s, Loaded<Tile, T>& f, const Streams<T>& p, const float (&bias)[WARPS][Tile::V],
                                           const ScanArgs& g, int lane) {
    constexpr int V = Tile::V, PAIR = Tile::PAIR;
    const int step = lane / Tile::SPAN;
    if (step < HALF) {
#pragma unroll
        for (int j = 0; j < WARPS; ++j) {
            const int i = item_of<Tile>(lane, j), group = i - step * Tile::GROUPS;
            float u[V], dt[V], dy[V], to_z[V], to_raw[V], both[2 * V];
#pragma unroll
            for (int k = 0; k < V; ++k) {
                const float value = softplus_slope(f.raw[j][k] + bias[j][k], to_raw[k]), z = f.z[j][k];
                const float gate = sigmoid(z), scaled = f.d_out[j][k] * gate;
                u[k] = f.u[j][k], dt[k] = f.exists ? value : 0.f, dy[k] = scaled * z;
                to_z[k] = scaled * fmaf(z, 1.f - gate, 1.f);
                both[2 * k] = f.cut ? CUT : dt[k], both[2 * k + 1] = dt[k] * u[k];
            }
#pragma unroll
            for (int k = 0; k < V; k += PAIR) {
                float pair[2 * PAIR];
#pragma unroll
                for (int m = 0; m < 2 * PAIR; ++m) pair[m] = both[2 * k + m];
                write(reinterpret_cast<float*>(s.dt + HalfIn<Tile>::at(step, group * V + k)), pair);
            }
            write(s.dy + i * V, dy), write(s.u + i * V, u), write(s.step + i * V, dt);
            write(s.to_z + i * V, to_z), write(s.to_raw + i * V, to_raw);
        }
    }
    if constexpr (Loaded<Tile, T>::BC_AHEAD) {
#pragma unroll
        for (int j = 0; j < Loaded<Tile, T>::BC_LOADS; ++j) stage_states<Tile>(s, f.b[j], f.c[j], j, lane);
    } else {
#pragma unroll 1
        for (int j = 0; j < Loaded<Tile, T>::BC_LOADS; ++j) {
            fetch_states<Tile, VECTOR>(f, p, 0, j, g, lane);
            stage_states<Tile>(s, f.b[0], f.c[0], j, lane);
        }
    }
}

// Gradients of half a chunk; sums of D and Δ bias stay in registers.
template <typename Tile, bool VECTOR, typename T>
__device__ __forceinline__ void finish_half(const HalfIn<Tile>& s, const HalfOut<Tile>& o, const Streams<T>& p,
                                            const float (&skip)[WARPS][Tile::V], float (&sum_d)[WARPS][Tile::V],
                                            float (&sum_bias)[WARPS][Tile::V], int t0, long long c0, const ScanArgs& g, int lane) {
    constexpr int V = Tile::V, PAIRS = Tile::STATES / 2;
    const int step = lane / Tile::SPAN, t = t0 + step;
    const long long first = c0 + lane % Tile::SPAN * V;
    T *const to_u = p.d_u + t * g.channels + first, *const to_dt = p.d_raw + t * g.channels + first, *const to_gate = p.d_z + t * g.ld_z + first;
    const int left = step < HALF && t < g.seq_len ? static_cast<int>(min(g.channels - first, static_cast<long long>(Tile::CB))) : 0;
    if (step < HALF) {
#pragma unroll
        for (int j = 0; j < WARPS; ++j) {
            const int i = item_of<Tile>(lane, j), group = i - step * Tile::GROUPS, offset = j * Tile::SPAN * V;
            float u[V], dt[V], dy[V], to_z[V], to_raw[V], sums[2 * V] = {}, d_dtu[V] = {};
            read(u, s.u + i * V), read(dt, s.step + i * V), read(dy, s.dy + i * V);
            read(to_z, s.to_z + i * V), read(to_raw, s.to_raw + i * V);
#pragma unroll
            for (int n = 0; n < Tile::LANE_PARTS; ++n) {
                float ys[2 * V], qs[V];
                read(ys, o.y + step * Tile::Y_STEP + group * Tile::Y_PITCH + n * 2 * V);
                read(qs, o.q + step * Tile::Q_STEP + group * Tile::Q_PITCH + n * V);
#pragma unroll
                for (int k = 0; k < V; ++k) sums[2 * k] += ys[2 * k], sums[2 * k + 1] += ys[2 * k + 1], d_dtu[k] += qs[k];
            }
            Pack<T, V> d_u, d_raw, d_z;
#pragma unroll
            for (int k = 0; k < V; ++k) {
                const float d = fmaf(sums[2 * k + 1], 1.f / LOG2E, d_dtu[k] * u[k]) * to_raw[k];
                d_z.v[k] = narrow<T>(fmaf(skip[j][k], u[k], sums[2 * k]) * to_z[k]);
                d_u.v[k] = narrow<T>(fmaf(d_dtu[k], dt[k], skip[j][k] * dy[k]));
                d_raw.v[k] = narrow<T>(d);
                sum_d[j][k] = fmaf(dy[k], u[k], sum_d[j][k]);
                sum_bias[j][k] += d;
            }
            const int valid = min(left - offset, V);
            store_pack<VECTOR, V>(to_u + offset, d_u, valid);
            store_pack<VECTOR, V>(to_dt + offset, d_raw, valid);
            store_pack<VECTOR, V>(to_gate + offset, d_z, valid);
        }
    }
    for (int i = lane; i < HALF * PAIRS; i += 32) {
        const int at = i / PAIRS, n = i % PAIRS * 2;
        float sum[4] = {};
#pragma unroll
        for (int w = 0; w < Tile::PARTS; ++w) {
            float part[4];
            read(part, &o.bc[at][w][n].x);
#pragma unroll
            for (int k = 0; k < 4; ++k) sum[k] += part[k];
        }
        if (t0 + at >= g.seq_len || n >= p.pitch) continue;
        float* row = p.partial_bc + static_cast<long long>(t0 + at) * 2 * p.pitch + n;
        *reinterpret_cast<float2*>(row) = make_float2(sum[0], sum[2]);
        *reinterpret_cast<float2*>(row + p.pitch) = make_float2(sum[1], sum[3]);
    }
}

// The fourth warp.
template <typename Tile, bool VECTOR, typename T>
__device__ __forceinline__ void assist(BackwardShared<Tile>& s, const Streams<T>& p, const float* d, const float* dt_bias, float* sums_d,
                                       float* sums_bias, long long c0, const ScanArgs& g, int lane) {
    constexpr int V = Tile::V;
    float skip[WARPS][V], bias[WARPS][V], sum_d[WARPS][V] = {}, sum_bias[WARPS][V] = {};
#pragma unroll
    for (int j = 0; j < WARPS; ++j)
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const long long at = c0 + (lane % Tile::SPAN + Tile::SPAN * j) * V + k;
            skip[j][k] = at < g.channels ? d[at] : 0.f, bias[j][k] = at < g.channels ? dt_bias[at] : 0.f;
        }
    const int chunks = static_cast<int>((g.seq_len + SCAN_CHUNK - 1) / SCAN_CHUNK);
    const auto first_step = [&](int half) { return (chunks - 1 - half / 2) * SCAN_CHUNK + (half % 2 ? 0 : HALF); };
    Loaded<Tile, T> f;
    fetch_half<Tile, VECTOR>(f, p, first_step(0), c0, g, lane);
#pragma unroll 1
    for (int half = -4; half < 2 * chunks; ++half) {
        if (half >= 0) {
            wait(OUT_FULL + half % 2);
            finish_half<Tile, VECTOR>(s.in[half % 4], s.out[half % 2], p, skip, sum_d, sum_bias, first_step(half), c0, g, lane);
        }
        const int ahead = half + 4;
        if (ahead < 2 * chunks) {
            if (half >= 0) signal(OUT_EMPTY + half % 2);
            stage_half<Tile, VECTOR>(s.in[ahead % 4], f, p, bias, g, lane);
            signal(IN_FULL + ahead % 4);
            fetch_half<Tile, VECTOR>(f, p, first_step(ahead + 1), c0, g, lane);
        } else if (half >= 0 && half + 2 < 2 * chunks) {
            signal(OUT_EMPTY + half % 2);
        }
    }
    // Sums of a channel's items, in step order.
    __syncwarp();
#pragma unroll
    for (int j = 0; j < WARPS; ++j) {
        const int i = item_of<Tile>(lane, j);
        if (lane / Tile::SPAN < HALF) write(s.in[0].u + i * V, sum_d[j]), write(s.in[0].to_z + i * V, sum_bias[j]);
    }
    __syncwarp();
    for (int k = lane; k < Tile::CB && c0 + k < g.channels; k += 32) {
        float total_d = 0.f, total_bias = 0.f;
        for (int t = 0; t < HALF; ++t) total_d += s.in[0].u[t * Tile::CB + k], total_bias += s.in[0].to_z[t * Tile::CB + k];
        sums_d[c0 + k] = total_d, sums_bias[c0 + k] = total_bias;
    }
}

// A thread's place: its row and lane part, and the orders of its states and channels. Neighbouring lanes read the same B and C.
template <typename Tile> struct Place {
    static constexpr int SAME = Tile::ROWS / Tile::ROLES;
    int warp, part, row, role, swap;
    __device__ __forceinline__ explicit Place(int thread)
        : warp(thread / 32), part(thread % 32 / Tile::ROWS), row(thread % Tile::ROWS), role(row / SAME),
          swap(Tile::CHANNELS == 2 ? part % 2 : 0) {}
    __device__ __forceinline__ int channel(int k) const { return (warp * Tile::ROWS + row) * Tile::CHANNELS + (k ^ swap); }
    __device__ __forceinline__ int state(int i) const { return part * Tile::SPL + (i ^ role); }
};

// Saved states of one thread, in its order.
template <typename Tile>
__device__ __forceinline__ void fetch_saved(float (&h)[8], const float* saved, int pitch, long long c0, const ScanArgs& g,
                                            const Place<Tile>& me) {
#pragma unroll
    for (int x = 0; x < 8; x += 4) {
        const long long channel = c0 + me.channel(x / Tile::SPL), n = me.part * Tile::SPL + x % Tile::SPL;
        float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
        if (channel < g.channels && n < pitch) v = *reinterpret_cast<const float4*>(saved + channel * pitch + n);
        h[x] = v.x, h[x + 1] = v.y, h[x + 2] = v.z, h[x + 3] = v.w;
    }
}
template <typename Tile>
__device__ __forceinline__ void read_row(float (&r)[Tile::SPL], const float (&row)[Tile::STATES / 4][Tile::ROLES * 4], const Place<Tile>& me) {
#pragma unroll
    for (int i = 0; i < Tile::SPL; i += 4)
        *reinterpret_cast<float4*>(r + i) = *reinterpret_cast<const float4*>(&row[(me.part * Tile::SPL + i) / 4][me.role * 4]);
}

// What one step back needs.
template <typename Tile> struct Operands {
    float b[Tile::SPL], c[Tile::SPL], dy[Tile::CHANNELS], next[Tile::CHANNELS];
    float2 dt[Tile::CHANNELS];
    __device__ __forceinline__ void load(const HalfIn<Tile>& s, const HalfIn<Tile>& ahead, int t, const Place<Tile>& me) {
        read_row<Tile>(b, s.b[t], me), read_row<Tile>(c, s.c[t], me);
#pragma unroll
        for (int k = 0; k < Tile::CHANNELS; ++k) {
            const int at = HalfIn<Tile>::at(t, me.channel(k));
            dt[k] = s.dt[at], dy[k] = s.dy[t * Tile::CB + me.channel(k)], next[k] = ahead.dt[at].x;
        }
    }
};

// What one step back leaves in a thread.
template <typename Tile> struct Sums {
    float b[Tile::SPL], c[Tile::SPL], y[Tile::CHANNELS], slopes[Tile::CHANNELS], q[Tile::CHANNELS];
    __device__ __forceinline__ void reduce(HalfOut<Tile>& o, int t, const Place<Tile>& me) {
#pragma unroll
        for (int m = 1; m < Tile::ROLES; m <<= 1)
#pragma unroll
            for (int i = 0; i < Tile::SPL; i += 2 * m) {
                b[i] += __shfl_xor_sync(~0u, b[i + m], m * Place<Tile>::SAME);
                c[i] += __shfl_xor_sync(~0u, c[i + m], m * Place<Tile>::SAME);
            }
        if constexpr (Tile::CHANNELS == 2) {
            y[0] += __shfl_xor_sync(~0u, y[1], Tile::ROWS);
            slopes[0] += __shfl_xor_sync(~0u, slopes[1], Tile::ROWS);
            q[0] += __shfl_xor_sync(~0u, q[1], Tile::ROWS);
        }
#pragma unroll
        for (int i = 0; i < Tile::SPL; i += Tile::ROLES)
            o.bc[t][me.warp * Place<Tile>::SAME + me.row % Place<Tile>::SAME][me.state(i)] = make_float2(b[i], c[i]);
        const int group = me.channel(0) / Tile::V, k = me.part / Tile::CHANNELS * Tile::V + me.channel(0) % Tile::V;
        *reinterpret_cast<float2*>(o.y + t * Tile::Y_STEP + group * Tile::Y_PITCH + k * 2) = make_float2(y[0], slopes[0]);
        o.q[t * Tile::Q_STEP + group * Tile::Q_PITCH + k] = q[0];
    }
};

// One step back; `decay` is replaced by the next half's.
template <typename Tile>
__device__ __forceinline__ void step_back(Sums<Tile>& s, float (&h)[8], float (&dh)[8], float (&d_a)[8], const float (&a)[8],
                                          float (&decay)[8], const float (&before)[8], const Operands<Tile>& in) {
#pragma unroll
    for (int k = 0; k < Tile::CHANNELS; ++k) {
        const float dt = in.dt[k].x, dtu = in.dt[k].y, dy = in.dy[k];
#pragma unroll
        for (int i = 0; i < Tile::SPL; ++i) {
            const int x = k * Tile::SPL + i;
            dh[x] = fmaf(dy, in.c[i], dh[x]);
            s.y[k] = i ? fmaf(h[x], in.c[i], s.y[k]) : h[x] * in.c[i];
            s.q[k] = i ? fmaf(dh[x], in.b[i], s.q[k]) : dh[x] * in.b[i];
            s.b[i] = k ? fmaf(dh[x], dtu, s.b[i]) : dh[x] * dtu;
            s.c[i] = k ? fmaf(dy, h[x], s.c[i]) : dy * h[x];
            dh[x] *= decay[x];
            decay[x] = exp2_fast(in.next[k] * a[x]);
            const float slope = dh[x] * before[x];
            s.slopes[k] = i ? fmaf(slope, a[x], s.slopes[k]) : slope * a[x];
            d_a[x] = fmaf(slope, dt, d_a[x]);
            h[x] = before[x];
        }
    }
}

template <typename Tile>
__device__ __forceinline__ void decays(float (&decay)[8], const float (&a)[8], const HalfIn<Tile>& s, int t, const Place<Tile>& me) {
#pragma unroll
    for (int x = 0; x < 8; ++x) decay[x] = exp2_fast(s.dt[HalfIn<Tile>::at(t, me.channel(x / Tile::SPL))].x * a[x]);
}

// Step t of the replay.
template <typename Tile>
__device__ __forceinline__ void step_on(float (&h)[8], const float (&decay)[8], const HalfIn<Tile>& s, int t, const Place<Tile>& me) {
    float b[Tile::SPL];
    read_row<Tile>(b, s.b[t], me);
#pragma unroll
    for (int k = 0; k < Tile::CHANNELS; ++k) {
        const float dtu = s.dt[HalfIn<Tile>::at(t, me.channel(k))].y;
#pragma unroll
        for (int i = 0; i < Tile::SPL; ++i) h[k * Tile::SPL + i] = fmaf(decay[k * Tile::SPL + i], h[k * Tile::SPL + i], dtu * b[i]);
    }
}

// A·log2(e), so that a decay is a power of two.
template <typename Tile>
__device__ __forceinline__ void fetch_rates(float (&a)[8], const float* neg_a, long long c0, const ScanArgs& g, const Place<Tile>& me) {
#pragma unroll
    for (int k = 0; k < Tile::CHANNELS; ++k)
#pragma unroll
        for (int i = 0; i < Tile::SPL; ++i) {
            const long long channel = c0 + me.channel(k);
            const bool exists = channel < g.channels && me.state(i) < g.states;
            const float value = exists ? neg_a[channel * g.states + me.state(i)] * LOG2E : 0.f;
            a[k * Tile::SPL + i] = value > -1e-20f ? -1e-20f : value;   // CUT·a must be far below 0
        }
}

template <typename Tile>
__device__ __forceinline__ void store_rates(float* partial_a, const float (&d_a)[8], const float* neg_a, long long c0, const ScanArgs& g,
                                            const Place<Tile>& me) {
    // The addresses are computed anew: kept from the start they would take registers from the loop.
    asm volatile("" : "+l"(c0));
#pragma unroll
    for (int k = 0; k < Tile::CHANNELS; ++k)
#pragma unroll
        for (int i = 0; i < Tile::SPL; ++i) {
            const long long at = (c0 + me.channel(k)) * g.states + me.state(i);
            if (c0 + me.channel(k) < g.channels && me.state(i) < g.states) partial_a[at] = d_a[k * Tile::SPL + i] * neg_a[at];
        }
}

// The first three warps.
template <typename Tile>
__device__ __forceinline__ void recur(BackwardShared<Tile>& s, const float* neg_a, const float* saved, float* partial_a, long long c0,
                                      const ScanArgs& g, const Place<Tile>& me) {
    const int pitch = padded_states<Tile>(g);
    float a[8], dh[8] = {}, d_a[8] = {}, start[8];
    fetch_rates<Tile>(a, neg_a, c0, g, me);
    const int chunks = static_cast<int>((g.seq_len + SCAN_CHUNK - 1) / SCAN_CHUNK);
    const long long stride = g.channels * pitch;
    fetch_saved<Tile>(start, saved + (chunks - 1) * stride, pitch, c0, g, me);
    float decay[HALF][8];
    wait(IN_FULL);
#pragma unroll
    for (int t = 0; t < HALF; ++t) decays<Tile>(decay[t], a, s.in[0], t, me);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        float h[8];
        exchange<Tile::ROLES>(start, me.role);
#pragma unroll
        for (int x = 0; x < 8; ++x) h[x] = start[x];
        wait(IN_FULL + chunk % 2 * 2 + 1);
#pragma unroll
        for (int t = 0; t < HALF; ++t) {
            float once[8];
            decays<Tile>(once, a, s.in[chunk % 2 * 2 + 1], t, me);
            step_on<Tile>(h, once, s.in[chunk % 2 * 2 + 1], t, me);
        }
#pragma unroll 1
        for (int lower = 0; lower < 2; ++lower) {
            const int half = chunk * 2 + lower;
            const bool last = half == 2 * chunks - 1;
            const HalfIn<Tile>&in = s.in[half % 4], &ahead = s.in[last ? 0 : (half + 1) % 4];   // after the last: unused
            HalfOut<Tile>& out = s.out[lower];
            float before[HALF][8];
#pragma unroll
            for (int t = 0; t < HALF; ++t) {
#pragma unroll
                for (int x = 0; x < 8; ++x) before[t][x] = h[x];
                step_on<Tile>(h, decay[t], in, t, me);
            }
            if (lower && !last) {
                fetch_saved<Tile>(start, saved + (chunks - 2 - chunk) * stride, pitch, c0, g, me);
                wait(IN_FULL + (half + 1) % 4);
            }
            if (chunk > 0) wait(OUT_EMPTY + lower);
            Operands<Tile> operands[2];
            Sums<Tile> sums[2];
            operands[1].load(in, ahead, HALF - 1, me);
#pragma unroll
            for (int t = HALF - 1; t >= 0; --t) {
                if (t > 0) operands[(t - 1) % 2].load(in, ahead, t - 1, me);
                step_back<Tile>(sums[t % 2], h, dh, d_a, a, decay[t], before[t], operands[t % 2]);
                if (t < HALF - 1) sums[(t + 1) % 2].reduce(out, t + 1, me);
            }
            sums[0].reduce(out, 0, me);
            signal(OUT_FULL + lower);
            if (!lower) {
#pragma unroll
                for (int x = 0; x < 8; ++x) h[x] = start[x];
            }
        }
    }
    store_rates<Tile>(partial_a, d_a, neg_a, c0, g, me);
}

template <typename T, int LANES, int SPL, bool VECTOR>
__global__ __launch_bounds__(SCAN_THREADS, 2) void scan_backward(
    const T* __restrict__ u, const T* __restrict__ raw, const T* __restrict__ z, const T* __restrict__ b, const T* __restrict__ c,
    const float* __restrict__ neg_a, const float* __restrict__ d, const float* __restrict__ dt_bias,
    const unsigned char* __restrict__ reset, const float* __restrict__ saved, const T* __restrict__ d_out, T* __restrict__ d_u,
    T* __restrict__ d_raw, T* __restrict__ d_z, float* __restrict__ partial_bc, float* __restrict__ partial_a,
    float* __restrict__ partial_d, float* __restrict__ partial_bias, ScanArgs g) {
    using Tile = BackwardTile<LANES, SPL>;
    extern __shared__ __align__(16) unsigned char memory[];
    BackwardShared<Tile>& s = *reinterpret_cast<BackwardShared<Tile>*>(memory);
    const long long blocks = (g.channels + Tile::CB - 1) / Tile::CB;
    const long long batch = blockIdx.x / blocks, block = blockIdx.x - batch * blocks, c0 = block * Tile::CB, token0 = batch * g.seq_len;
    const int pitch = padded_states<Tile>(g);
    if (threadIdx.x < WARPS * 32) {
        const long long chunks = (g.seq_len + SCAN_CHUNK - 1) / SCAN_CHUNK;
        recur<Tile>(s, neg_a, saved + batch * chunks * g.channels * pitch, partial_a + batch * g.channels * g.states, c0, g,
                    Place<Tile>(threadIdx.x));
    } else {
        const Streams<T> p = {u + token0 * g.ld_u, raw + token0 * g.ld_raw, z + token0 * g.ld_z, b + token0 * g.ld_bc,
                              c + token0 * g.ld_bc, d_out + token0 * g.ld_out, reset ? reset + token0 : nullptr,
                              d_u + token0 * g.channels, d_raw + token0 * g.channels, d_z + token0 * g.ld_z,
                              partial_bc + (block * g.batch + batch) * g.seq_len * 2 * pitch, pitch};
        assist<Tile, VECTOR>(s, p, d, dt_bias, partial_d + batch * g.channels, partial_bias + batch * g.channels, c0, g, threadIdx.x % 32);
    }
}

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
