// Causal depthwise convolution with SiLU, forward and backward.
//
//   c_t = bias + Σ_k w[k]·x_{t-W+1+k};   out = c·sigmoid(c)
//
// Samples before the window come from the carried state; a reset cuts the window off before its token. A warp takes 32·V
// neighbouring channels through one tile of steps, V a lane, with the last W samples in registers. R rows are in flight: a
// row that has been used makes room for the one R steps ahead. Tiles that a reset or the end of a sequence touches go row
// by row. No bit of `out` or `d_x` depends on the size of the tiles or on V.
//
// Width 4, which nearly every model has, is a module of its own.
//
// @variant f32_4 -DSTORAGE=float -DFOUR=1
// @variant bf16_4 -DSTORAGE=__nv_bfloat16 -DFOUR=1
// @variant f16_4 -DSTORAGE=__half -DFOUR=1
// @variant f32 -DSTORAGE=float -DFOUR=0
// @variant bf16 -DSTORAGE=__nv_bfloat16 -DFOUR=0
// @variant f16 -DSTORAGE=__half -DFOUR=0
#include "storage.cuh"

// Blocks of four warps, each with its own tile.
constexpr int LANES = 32, WARPS = 4, THREADS = LANES * WARPS;

// Mirrors `ConvArgs` in mamba-kernels.
struct ConvArgs {
    long long batch, seq_len, channels;
    long long ld_x, ld_dx;                       // elements between tokens of x and d_x; the other matrices are dense
    long long forward_steps, backward_steps;     // of a tile: multiples of the rows in flight
};
static_assert(sizeof(ConvArgs) == 56, "keep in step with ConvArgs in conv/causal_conv1d.rs");

// Rows in flight with V channels a lane (one channel, for what has no aligned vectors, goes row by row), and blocks that
// share a multiprocessor: as many as the registers hold.
template <int V> constexpr int FORWARD_ROWS = V == 1 ? 1 : 6;
template <int V> constexpr int BACKWARD_ROWS = V == 1 ? 1 : V == 4 ? 3 : 6;
template <typename T, int V> constexpr int FORWARD_BLOCKS = V == 1 ? 8 : sizeof(T) == 4 ? 5 : 6;
template <int V> constexpr int BACKWARD_BLOCKS = V == 1 ? 5 : 4;

// 1 / (1 + e^-c), about 1e-7 + 6e-8·|c| relative; NaN stays NaN.
__device__ __forceinline__ float gate(float c) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.f + exp2_fast(-LOG2E * c)));
    return y;
}

__device__ __forceinline__ unsigned short bits(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }
__device__ __forceinline__ unsigned short bits(__half x) { return __half_as_ushort(x); }
__device__ __forceinline__ float half_bits(unsigned x, __nv_bfloat16) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float half_bits(unsigned x, __half) { return __half2float(__ushort_as_half(static_cast<unsigned short>(x))); }

// V neighbouring elements of one row in whole registers.
template <typename T, int V> struct Row {
    static constexpr int WORDS = (V * sizeof(T) + 3) / 4;
    unsigned w[WORDS];

    __device__ __forceinline__ void load(const T* p) {
        if constexpr (V * sizeof(T) == 2) {
            w[0] = *reinterpret_cast<const unsigned short*>(p);
        } else {
            using Words = Pack<unsigned, WORDS>;
            const Words q = *reinterpret_cast<const Words*>(p);
#pragma unroll
            for (int i = 0; i < WORDS; ++i) w[i] = q.v[i];
        }
    }
    __device__ __forceinline__ void store(T* p) const {
        if constexpr (V * sizeof(T) == 2) {
            *reinterpret_cast<unsigned short*>(p) = static_cast<unsigned short>(w[0]);
        } else {
            Pack<unsigned, WORDS> q;
#pragma unroll
            for (int i = 0; i < WORDS; ++i) q.v[i] = w[i];
            *reinterpret_cast<Pack<unsigned, WORDS>*>(p) = q;
        }
    }
    __device__ __forceinline__ float operator[](int v) const {
        if constexpr (sizeof(T) == 4) return __uint_as_float(w[v]);
        else return half_bits(v % 2 ? w[v / 2] >> 16 : w[v / 2] & 0xffffu, T());
    }
    __device__ __forceinline__ void set(const float (&x)[V]) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            if constexpr (sizeof(T) == 4) w[i] = __float_as_uint(x[i]);
            else if constexpr (V == 1) w[i] = bits(narrow<T>(x[0]));
            else w[i] = bits(narrow<T>(x[2 * i])) | static_cast<unsigned>(bits(narrow<T>(x[2 * i + 1]))) << 16;
        }
    }
};

// What a warp works on. Where the last group is not full, its last channels are computed more than once.
template <int V> struct Tile {
    unsigned group, unit;
    int lane, rows;              // rows of the tile, 0 for none
    long long batch, t0, token;  // first step and its token
    long long first, channel;    // first channel of the block, of the thread
    bool mine;                   // whether the thread's channels are its own to write

    __device__ __forceinline__ Tile(const ConvArgs& g, long long steps) {
        constexpr int SPAN = LANES * V;
        const unsigned groups = static_cast<unsigned>((g.channels + SPAN - 1) / SPAN);
        const unsigned tiles = static_cast<unsigned>((g.seq_len + steps - 1) / steps);
        group = blockIdx.x % groups, unit = blockIdx.x / groups * WARPS + threadIdx.x / LANES;
        lane = threadIdx.x % LANES;
        batch = unit / tiles, t0 = static_cast<long long>(unit % tiles) * steps;
        token = batch * g.seq_len + t0;
        rows = batch < g.batch ? static_cast<int>(min(steps, g.seq_len - t0)) : 0;
        first = static_cast<long long>(group) * SPAN;
        const long long own = first + lane * V;
        mine = own < g.channels, channel = min(own, g.channels - V);
    }
};

// Whether one of `rows` tokens begins a document.
__device__ __forceinline__ bool any_reset(const unsigned char* reset, int rows) {
    if (!reset) return false;
    unsigned any = 0;
#pragma unroll 1
    for (int i = threadIdx.x % LANES; i < rows; i += LANES) any |= reset[i];
    return __any_sync(~0u, any != 0);
}

// Weights and bias of a thread's channels. They come by way of shared memory, which turns [channel][tap] around.
template <int W, int V> struct Taps {
    static constexpr int PITCH = LANES * V + 8, SHARED = (W + 1) * PITCH;
    float w[W][V], bias[V];

    __device__ __forceinline__ static void stage(float* shared, const float* weight, const float* b, long long first, long long channels) {
        const int n = static_cast<int>(min(static_cast<long long>(LANES * V), channels - first));
#pragma unroll 1
        for (int i = threadIdx.x; i < LANES * V * W; i += THREADS) shared[i % W * PITCH + i / W] = i < n * W ? weight[first * W + i] : 0.f;
#pragma unroll 1
        for (int i = threadIdx.x; i < LANES * V; i += THREADS) shared[W * PITCH + i] = b && i < n ? b[first + i] : 0.f;
        __syncthreads();
    }
    // Those of the thread's own place in the group: beyond the channels, zeros.
    __device__ __forceinline__ void read(const float* shared) {
#pragma unroll
        for (int k = 0; k <= W; ++k) {
            const Pack<float, V> q = *reinterpret_cast<const Pack<float, V>*>(shared + k * PITCH + threadIdx.x % LANES * V);
#pragma unroll
            for (int v = 0; v < V; ++v) (k < W ? w[k < W ? k : 0][v] : bias[v]) = q.v[v];
        }
    }
};

// The W - 1 rows before a tile.
template <int W, int V, typename T>
__device__ __forceinline__ void load_past(Row<T, V> (&past)[W], const Tile<V>& p, const T* row, const ConvArgs& g) {
#pragma unroll
    for (int k = 0; k + 1 < W; ++k)
        if (p.rows > 0 && p.t0 > 0) past[k].load(row + (k + 1 - W) * g.ld_x);
}

// The samples of W steps, oldest first; `take` sets the newest.
template <typename T, int W, int V> struct Window {
    static constexpr int H = W - 1;
    float x[W][V];

    __device__ __forceinline__ void forget(int steps) {
#pragma unroll
        for (int k = 0; k < H; ++k)
#pragma unroll
            for (int v = 0; v < V; ++v)
                if (k < steps) x[k][v] = 0.f;
    }
    // The samples before a tile, `past`, or at the start of a sequence the carried state (null: zeros).
    __device__ __forceinline__ void open(const Row<T, V> (&past)[W], const Tile<V>& p, const float* state, const unsigned char* reset, const ConvArgs& g) {
        if (state) state += (p.batch * g.channels + p.channel) * H;
#pragma unroll
        for (int k = 0; k < H; ++k) {
            if (k > 0 && p.t0 > 0 && reset && reset[k - H]) forget(k);
#pragma unroll
            for (int v = 0; v < V; ++v) x[k][v] = p.t0 > 0 ? past[k][v] : state ? state[v * H + k] : 0.f;
        }
    }
    __device__ __forceinline__ void take(const Row<T, V>& row) {
#pragma unroll
        for (int v = 0; v < V; ++v) x[H][v] = row[v];
    }
    __device__ __forceinline__ void shift() {
#pragma unroll
        for (int k = 0; k < H; ++k)
#pragma unroll
            for (int v = 0; v < V; ++v) x[k][v] = x[k + 1][v];
    }
    __device__ __forceinline__ float tap_sum(const Taps<W, V>& taps, int v) const {
        float c = taps.bias[v];
#pragma unroll
        for (int k = 0; k < W; ++k) c = fmaf(taps.w[k][v], x[k][v], c);
        return c;
    }
    // Output of the newest step.
    __device__ __forceinline__ void emit(const Taps<W, V>& taps, T* to, bool mine) const {
        float out[V];
#pragma unroll
        for (int v = 0; v < V; ++v) {
            const float c = tap_sum(taps, v);
            out[v] = c * gate(c);
        }
        Row<T, V> row;
        row.set(out);
        if (mine) row.store(to);
    }
};

// The last W - 1 samples of a sequence, for the next window.
template <typename T, int W, int V>
__device__ __forceinline__ void carry(const Tile<V>& p, const T* x, const unsigned char* reset, const float* state_in, float* state_out, const ConvArgs& g) {
    constexpr int H = W - 1;
    const long long state = (p.batch * g.channels + p.channel) * H, token0 = p.batch * g.seq_len;
    bool kept = true;
#pragma unroll 1
    for (int k = H - 1; k >= 0; --k) {
        const long long t = g.seq_len - H + k;
#pragma unroll
        for (int v = 0; v < V; ++v) {
            float sample = 0.f;
            if (kept && t >= 0) sample = widen(x[(token0 + t) * g.ld_x + p.channel + v]);
            if (kept && t < 0 && state_in) sample = state_in[state + v * H + H + t];
            state_out[state + v * H + k] = sample;
        }
        if (reset && t >= 0 && reset[token0 + t]) kept = false;
    }
}

// `state_in` and `state_out` are [batch, channels, W - 1], oldest first; both may be null.
template <typename T, int W, int V>
__global__ __launch_bounds__(THREADS, (FORWARD_BLOCKS<T, V>)) void conv_forward(
    const T* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ b, const unsigned char* __restrict__ reset,
    const float* __restrict__ state_in, T* __restrict__ out, float* __restrict__ state_out, ConvArgs g) {
    constexpr int R = FORWARD_ROWS<V>;
    __shared__ __align__(16) float shared[Taps<W, V>::SHARED];
    const Tile<V> p(g, g.forward_steps);
    const T* px = x + p.token * g.ld_x + p.channel;
    T* po = out + p.token * g.channels + p.channel;
    const unsigned char* starts = reset ? reset + p.token : nullptr;
    Row<T, V> past[W] = {}, next[R] = {};
    load_past<W>(past, p, px, g);
#pragma unroll
    for (int i = 0; i < R; ++i, px += g.ld_x)
        if (i < p.rows) next[i].load(px);
    Taps<W, V>::stage(shared, weight, b, p.first, g.channels);
    if (p.rows == 0) return;
    Taps<W, V> taps;
    taps.read(shared);
    Window<T, W, V> window;
    window.open(past, p, state_in, starts, g);
    if (R > 1 && p.rows == g.forward_steps && !any_reset(starts, p.rows)) {
#pragma unroll 1
        for (int t = 0; t < p.rows; t += R) {
            const bool more = t + R < p.rows;
#pragma unroll
            for (int i = 0; i < R; ++i, px += g.ld_x, po += g.channels) {
                window.take(next[i]);
                if (more) next[i].load(px);
                window.emit(taps, po, p.mine);
                window.shift();
            }
        }
    } else {
        px -= (R - 1) * g.ld_x;
#pragma unroll 1
        for (int t = 0; t < p.rows; ++t, px += g.ld_x, po += g.channels) {
            if (starts && starts[t]) window.forget(W);
            window.take(next[0]);
            if (t + 1 < p.rows) next[0].load(px);
            window.emit(taps, po, p.mine);
            window.shift();
        }
    }
    if (W > 1 && state_out && p.mine && p.t0 + p.rows == g.seq_len) carry<T, W, V>(p, x, reset, state_in, state_out, g);
}

// What the backward reads of one step.
template <typename T, int V> struct Sources {
    const T *x, *d;
    long long second;   // from d_out to d_out2, 0: none

    __device__ __forceinline__ Sources(const T* x, const T* d_out, const T* d_out2, const Tile<V>& p, const ConvArgs& g)
        : x(x + p.token * g.ld_x + p.channel), d(d_out + p.token * g.channels + p.channel), second(d_out2 ? d_out2 - d_out : 0) {}
    __device__ __forceinline__ void advance(const ConvArgs& g) { x += g.ld_x, d += g.channels; }
};
template <typename T, int V> struct Inputs {
    Row<T, V> x, d, d2;

    __device__ __forceinline__ void load(const Sources<T, V>& from) {
        x.load(from.x), d.load(from.d);
        if (from.second) d2.load(from.d + from.second);
    }
};

// The backward's state: what goes from step to step, and the sums over the tile.
template <typename T, int W, int V> struct Adjoint {
    static constexpr int H = W - 1, R = BACKWARD_ROWS<V>;
    static_assert(R == 1 || H <= R, "the rows in flight reach the steps after a tile that its samples reach");
    Taps<W, V> taps;
    Window<T, W, V> window;
    float pending[W][V];   // [j]: gradient of the sample j steps ago, as far as it is known
    float d_w[W][V], d_bias[V];

    // Takes one step; OWN: a step of this tile, which counts for the taps.
    template <bool OWN> __device__ __forceinline__ void step(const float (&d)[V]) {
#pragma unroll
        for (int v = 0; v < V; ++v) {
            // silu'(c) = s + c·(s - s²)
            const float c = window.tap_sum(taps, v), s = gate(c), d_c = d[v] * fmaf(fmaf(-s, s, s), c, s);
            if (OWN) {
                d_bias[v] += d_c;
#pragma unroll
                for (int k = 0; k < W; ++k) d_w[k][v] = fmaf(d_c, window.x[k][v], d_w[k][v]);
            }
#pragma unroll
            for (int j = H; j > 0; --j) pending[j][v] = fmaf(taps.w[H - j][v], d_c, pending[j - 1][v]);
            pending[0][v] = taps.w[H][v] * d_c;
        }
        window.shift();
    }
    // Row i of the ring is taken and, if `more`, replaced.
    template <bool OWN> __device__ __forceinline__ void turn(Inputs<T, V>& in, bool more, Sources<T, V>& from, const ConvArgs& g) {
        float d[V];
        window.take(in.x);
#pragma unroll
        for (int v = 0; v < V; ++v) d[v] = in.d[v] + in.d2[v];
        if (more) in.load(from);
        from.advance(g);
        step<OWN>(d);
    }
    __device__ __forceinline__ void send(bool whether, T* to, int j) const {
        Row<T, V> row;
        row.set(pending[j]);
        if (whether) row.store(to);
    }
    // A whole tile whose W - 1 following steps exist, without a reset; the first R rows are loaded.
    __device__ __forceinline__ void whole(Inputs<T, V> (&ring)[R], Sources<T, V>& from, T* to, const Tile<V>& p, const ConvArgs& g) {
#pragma unroll 1
        for (int t = 0; t < p.rows; t += R) {
            const bool more = t + R < p.rows, complete = p.mine && t > 0;
#pragma unroll
            for (int i = 0; i < R; ++i, to += g.ld_dx) {
                turn<true>(ring[i], i < H || more, from, g);
                send(i < H ? complete : p.mine, to, H);
            }
        }
#pragma unroll
        for (int i = 0; i < H; ++i, to += g.ld_dx) {
            turn<false>(ring[i < R ? i : 0], false, from, g);
            send(p.mine, to, H);
        }
    }
    // Any tile, row by row. No gradient comes from beyond the end of the sequence or crosses a reset.
    __device__ __forceinline__ void careful(Sources<T, V>& from, T* to, const unsigned char* reset, const Tile<V>& p, const ConvArgs& g) {
        const int reach = static_cast<int>(min(static_cast<long long>(p.rows + H), g.seq_len - p.t0));
        int unsent = 0;
#pragma unroll 1
        for (int row = 0; row < p.rows + H; ++row, to += g.ld_dx) {
            if (row == reach || (reset && reset[row])) {
                // What is pending is complete.
#pragma unroll
                for (int j = H; j > 0; --j) send(p.mine && row - j >= unsent && row - j < p.rows, to + (H - j) * g.ld_dx, j - 1);
                if (row == reach) break;
                unsent = row;
                window.forget(W);
            }
            Inputs<T, V> in = {};
            in.load(from);
            if (row < p.rows) turn<true>(in, false, from, g);
            else turn<false>(in, false, from, g);
            send(p.mine && row - H >= unsent, to, H);
        }
    }
};

// The gradient of `out` is d_out + d_out2 (`d_out2` may be null). d_x is overwritten. partial[part][channel][W + 1] gets
// the sums of a block's four tiles for the taps and the bias.
template <typename T, int W, int V>
__global__ __launch_bounds__(THREADS, BACKWARD_BLOCKS<V>) void conv_backward(
    const T* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ b, const unsigned char* __restrict__ reset,
    const float* __restrict__ state_in, const T* __restrict__ d_out, const T* __restrict__ d_out2, T* __restrict__ d_x,
    float* __restrict__ partial, ConvArgs g) {
    constexpr int R = BACKWARD_ROWS<V>, H = W - 1, COLUMNS = LANES * V * (W + 1);
    __shared__ __align__(16) float shared[Taps<W, V>::SHARED];
    __shared__ float sums[WARPS][COLUMNS];
    __shared__ long long place[2];   // where the sums go and how many: not in registers meanwhile
    const Tile<V> p(g, g.backward_steps);
    if (threadIdx.x == 0) {
        place[0] = (static_cast<long long>(p.unit / WARPS) * g.channels + p.first) * (W + 1);
        place[1] = min(static_cast<long long>(LANES * V), g.channels - p.first) * (W + 1);
    }
    Sources<T, V> from(x, d_out, d_out2, p, g);
    const unsigned char* starts = reset ? reset + p.token : nullptr;
    Row<T, V> past[W] = {};
    load_past<W>(past, p, from.x, g);
    const bool whole = R > 1 && p.rows == g.backward_steps && p.t0 + p.rows + H <= g.seq_len && !any_reset(starts, p.rows + H);
    T* to = d_x + (p.token - H) * g.ld_dx + p.channel;   // a sample's gradient is complete W - 1 steps later
    Inputs<T, V> ring[R] = {};
    if (whole) {
#pragma unroll
        for (int i = 0; i < R; ++i) ring[i].load(from), from.advance(g);
    }
    Taps<W, V>::stage(shared, weight, b, p.first, g.channels);
    Adjoint<T, W, V> a = {};
    a.taps.read(shared);
    if (p.rows > 0) a.window.open(past, p, state_in, starts, g);
    if (whole) a.whole(ring, from, to, p, g);
    else if (p.rows > 0) a.careful(from, to, starts, p, g);
#pragma unroll
    for (int v = 0; v < V; ++v) {
        float* q = sums[threadIdx.x / LANES] + (threadIdx.x % LANES * V + v) * (W + 1);
#pragma unroll
        for (int k = 0; k < W; ++k) q[k] = a.d_w[k][v];
        q[W] = a.d_bias[v];
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < static_cast<int>(place[1]); i += THREADS) {
        float sum = sums[0][i];
#pragma unroll
        for (int w = 1; w < WARPS; ++w) sum += sums[w][i];
        partial[place[0] + i] = sum;
    }
}

#define FORWARD(W, V) \
    template __global__ void conv_forward<STORAGE, W, V>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, STORAGE*, float*, ConvArgs);
#define BACKWARD(W, V) \
    template __global__ void conv_backward<STORAGE, W, V>(const STORAGE*, const float*, const float*, const unsigned char*, const float*, const STORAGE*, const STORAGE*, STORAGE*, float*, ConvArgs);
#define VECTOR(W) FORWARD(W, 4) BACKWARD(W, sizeof(STORAGE) == 4 ? 2 : 4)
#define SCALAR(W) FORWARD(W, 1) BACKWARD(W, 1)
#if FOUR
VECTOR(4) SCALAR(4)
#else
VECTOR(2) VECTOR(3)
SCALAR(1) SCALAR(2) SCALAR(3) SCALAR(5) SCALAR(6) SCALAR(7) SCALAR(8)
#endif
