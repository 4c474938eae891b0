// Causal depthwise convolution with SiLU, forward and backward.
//
//   c_t = bias + Σ_k w[k]·x_{t-W+1+k};   out = c·sigmoid(c)
//
// Samples before the window come from the carried state; a reset cuts the window off before its token. One thread takes V
// neighbouring channels through TT steps, with the window in registers.
//
// @variant f32 -DSTORAGE=float
// @variant bf16 -DSTORAGE=__nv_bfloat16
// @variant f16 -DSTORAGE=__half
#include "storage.cuh"

constexpr int THREADS = 128, TT = 16;

// Mirrors `ConvArgs` in mamba-kernels.
struct ConvArgs {
    long long batch, seq_len, channels, width;
    long long ld_x, ld_dx;   // elements between tokens of x and d_x; the other matrices are dense
};
static_assert(sizeof(ConvArgs) == 48, "keep in step with ConvArgs in conv/mod.rs");

// The samples of W steps, oldest first, for V channels.
template <int W, int V> struct Window {
    float x[W][V];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int k = 0; k < W; ++k)
#pragma unroll
            for (int v = 0; v < V; ++v) x[k][v] = 0.f;
    }
    __device__ __forceinline__ void push(const float (&next)[V]) {
#pragma unroll
        for (int v = 0; v < V; ++v) {
#pragma unroll
            for (int k = 0; k + 1 < W; ++k) x[k][v] = x[k + 1][v];
            x[W - 1][v] = next[v];
        }
    }
    __device__ __forceinline__ float tap_sum(const float (&w)[W][V], int v, float bias) const {
        float sum = bias;
#pragma unroll
        for (int k = 0; k < W; ++k) sum = fmaf(w[k][v], x[k][v], sum);
        return sum;
    }
};

// What a thread works on.
struct Place {
    long long batch, channel, t0, token0;
    int valid;
};
template <int V> __device__ __forceinline__ Place place(const ConvArgs& g) {
    const long long groups = (g.channels + V - 1) / V, tiles = (g.seq_len + TT - 1) / TT;
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    const long long group = i % groups, rest = i / groups;
    const long long tile = rest % tiles, batch = rest / tiles;
    Place p = {batch, group * V, tile * TT, batch * g.seq_len, 0};
    if (batch < g.batch) p.valid = static_cast<int>(min(static_cast<long long>(V), g.channels - p.channel));
    return p;
}

template <int W, int V>
__device__ __forceinline__ void load_taps(float (&w)[W][V], float (&bias)[V], const float* weight, const float* b, const Place& p) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
        bias[v] = b && v < p.valid ? b[p.channel + v] : 0.f;
#pragma unroll
        for (int k = 0; k < W; ++k) w[k][v] = v < p.valid ? weight[(p.channel + v) * W + k] : 0.f;
    }
}

// Sample of step t, which may lie in the carried state (t < 0, `state` null: zero).
template <bool VECTOR, int W, int V, typename T>
__device__ __forceinline__ void sample(float (&out)[V], const T* x, const float* state, long long t, const Place& p, const ConvArgs& g) {
    if (t >= 0) {
        const Pack<T, V> q = load_pack<VECTOR, V>(x + (p.token0 + t) * g.ld_x + p.channel, p.valid);
#pragma unroll
        for (int v = 0; v < V; ++v) out[v] = widen(q.v[v]);
    } else {
#pragma unroll
        for (int v = 0; v < V; ++v)
            out[v] = state && v < p.valid ? state[(p.batch * g.channels + p.channel + v) * (W - 1) + (W - 1 + t)] : 0.f;
    }
}

// The window as it stands before step t0.
template <bool VECTOR, int W, int V, typename T>
__device__ __forceinline__ void open_window(Window<W, V>& window, const T* x, const float* state, const unsigned char* reset,
                                            const Place& p, const ConvArgs& g) {
    window.clear();
#pragma unroll
    for (int k = 1 - W; k < 0; ++k) {
        const long long t = p.t0 + k;
        if (reset && t >= 0 && reset[p.token0 + t]) window.clear();
        float next[V];
        sample<VECTOR, W, V>(next, x, state, t, p, g);
        window.push(next);
    }
}

// `state_in` and `state_out` are [batch, channels, W - 1], oldest first; both may be null.
template <typename T, int W, int V, bool VECTOR>
__global__ __launch_bounds__(THREADS) void conv_forward(const T* __restrict__ x, const float* __restrict__ weight,
                                                        const float* __restrict__ b, const unsigned char* __restrict__ reset,
                                                        const float* __restrict__ state_in, T* __restrict__ out,
                                                        float* __restrict__ state_out, ConvArgs g) {
    const Place p = place<V>(g);
    if (p.valid <= 0) return;
    float w[W][V], bias[V];
    load_taps<W, V>(w, bias, weight, b, p);
    Window<W, V> window;
    open_window<VECTOR>(window, x, state_in, reset, p, g);
    const long long end = min(p.t0 + TT, g.seq_len);
#pragma unroll 8
    for (long long t = p.t0; t < end; ++t) {
        float next[V];
        sample<VECTOR, W, V>(next, x, state_in, t, p, g);
        if (reset && reset[p.token0 + t]) window.clear();
        window.push(next);
        Pack<T, V> r;
#pragma unroll
        for (int v = 0; v < V; ++v) {
            const float c = window.tap_sum(w, v, bias[v]);
            r.v[v] = narrow<T>(c * sigmoid(c));
        }
        store_pack<VECTOR, V>(out + (p.token0 + t) * g.channels + p.channel, r, p.valid);
    }
    if (state_out && end == g.seq_len) {
        for (int v = 0; v < p.valid; ++v)
#pragma unroll
            for (int k = 1; k < W; ++k)
                // A constant register index for every v.
#pragma unroll
                for (int i = 0; i < V; ++i)
                    if (i == v) state_out[(p.batch * g.channels + p.channel + v) * (W - 1) + k - 1] = window.x[k][i];
    }
}

// The gradient of `out` is d_out + d_out2 (`d_out2` may be null). d_x is overwritten. partial[part][channel][W + 1] gets
// this tile's sums for the taps and the bias, part = batch · tiles + tile.
template <typename T, int W, int V, bool VECTOR>
__global__ __launch_bounds__(THREADS) void conv_backward(const T* __restrict__ x, const float* __restrict__ weight,
                                                         const float* __restrict__ b, const unsigned char* __restrict__ reset,
                                                         const float* __restrict__ state_in, const T* __restrict__ d_out,
                                                         const T* __restrict__ d_out2, T* __restrict__ d_x,
                                                         float* __restrict__ partial, ConvArgs g) {
    const Place p = place<V>(g);
    if (p.valid <= 0) return;
    float w[W][V], bias[V];
    load_taps<W, V>(w, bias, weight, b, p);
    Window<W, V> window;
    open_window<VECTOR>(window, x, state_in, reset, p, g);
    // pending[j] is the gradient of step t - j so far.
    float pending[W][V] = {}, d_w[W][V] = {}, d_bias[V] = {};
    const long long end = min(p.t0 + TT, g.seq_len);
    int since = W;   // steps since the last reset: no gradient crosses it
#pragma unroll 2
    for (long long t = p.t0; t < end + W - 1; ++t) {
        float d_c[V] = {};
        if (t < g.seq_len) {
            const long long token = p.token0 + t;
            if (reset && reset[token]) window.clear(), since = 0;
            float next[V];
            sample<VECTOR, W, V>(next, x, state_in, t, p, g);
            window.push(next);
            const Pack<T, V> q = load_pack<VECTOR, V>(d_out + token * g.channels + p.channel, p.valid);
            Pack<T, V> q2 = {};
            if (d_out2) q2 = load_pack<VECTOR, V>(d_out2 + token * g.channels + p.channel, p.valid);
#pragma unroll
            for (int v = 0; v < V; ++v) {
                const float d = d_out2 ? widen(q.v[v]) + widen(q2.v[v]) : widen(q.v[v]);
                const float c = window.tap_sum(w, v, bias[v]), gate = sigmoid(c);
                d_c[v] = d * gate * (1.f + c * (1.f - gate));
            }
            if (t < end) {
#pragma unroll
                for (int v = 0; v < V; ++v) {
                    d_bias[v] += d_c[v];
#pragma unroll
                    for (int k = 0; k < W; ++k) d_w[k][v] = fmaf(d_c[v], window.x[k][v], d_w[k][v]);
                }
            }
        }
#pragma unroll
        for (int v = 0; v < V; ++v) {
#pragma unroll
            for (int j = W - 1; j > 0; --j) pending[j][v] = pending[j - 1][v];
            pending[0][v] = 0.f;
#pragma unroll
            for (int j = 0; j < W; ++j)
                if (j <= since) pending[j][v] = fmaf(w[W - 1 - j][v], d_c[v], pending[j][v]);
        }
        if (since < W) ++since;
        const long long done = t - (W - 1);
        if (done >= p.t0) {
            Pack<T, V> r;
#pragma unroll
            for (int v = 0; v < V; ++v) r.v[v] = narrow<T>(pending[W - 1][v]);
            store_pack<VECTOR, V>(d_x + (p.token0 + done) * g.ld_dx + p.channel, r, p.valid);
        }
    }
    const long long tiles = (g.seq_len + TT - 1) / TT;
    float* q = partial + ((p.batch * tiles + p.t0 / TT) * g.channels + p.channel) * (W + 1);
#pragma unroll
    for (int v = 0; v < V; ++v) {
        if (v >= p.valid) break;
#pragma unroll
        for (int k = 0; k < W; ++k) q[v * (W + 1) + k] = d_w[k][v];
        q[v * (W + 1) + W] = d_bias[v];
    }
}

template __global__ void conv_forward<STORAGE, 2, 8, true>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
template __global__ void conv_backward<STORAGE, 2, 8, true>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
template __global__ void conv_forward<STORAGE, 2, 8, false>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
template __global__ void conv_backward<STORAGE, 2, 8, false>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
template __global__ void conv_forward<STORAGE, 3, 8, true>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
template __global__ void conv_backward<STORAGE, 3, 8, true>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
template __global__ void conv_forward<STORAGE, 3, 8, false>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
template __global__ void conv_backward<STORAGE, 3, 8, false>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
template __global__ void conv_forward<STORAGE, 4, 8, true>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
template __global__ void conv_backward<STORAGE, 4, 8, true>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
template __global__ void conv_forward<STORAGE, 4, 8, false>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
template __global__ void conv_backward<STORAGE, 4, 8, false>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
template __global__ void conv_forward<STORAGE, 1, 4, true>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
template __global__ void conv_backward<STORAGE, 1, 4, true>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
template __global__ void conv_forward<STORAGE, 1, 4, false>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
template __global__ void conv_backward<STORAGE, 1, 4, false>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
template __global__ void conv_forward<STORAGE, 5, 4, true>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
template __global__ void conv_backward<STORAGE, 5, 4, true>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
template __global__ void conv_forward<STORAGE, 5, 4, false>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
template __global__ void conv_backward<STORAGE, 5, 4, false>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
template __global__ void conv_forward<STORAGE, 6, 4, true>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
template __global__ void conv_backward<STORAGE, 6, 4, true>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
template __global__ void conv_forward<STORAGE, 6, 4, false>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
template __global__ void conv_backward<STORAGE, 6, 4, false>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
template __global__ void conv_forward<STORAGE, 7, 2, true>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
template __global__ void conv_backward<STORAGE, 7, 2, true>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
template __global__ void conv_forward<STORAGE, 7, 2, false>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
template __global__ void conv_backward<STORAGE, 7, 2, false>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
template __global__ void conv_forward<STORAGE, 8, 2, true>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
template __global__ void conv_backward<STORAGE, 8, 2, true>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
template __global__ void conv_forward<STORAGE, 8, 2, false>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
template __global__ void conv_backward<STORAGE, 8, 2, false>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
