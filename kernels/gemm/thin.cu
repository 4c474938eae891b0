// Products with few rows, as decoding token by token needs them: bound by reading the weights, which are read once for
// eight rows. Sums are in f32, over k in an order that depends on k alone: a row has the same bits among any others.
//
// @variant f32_1 -DSTORAGE=float -DBLOCK_ROWS=1
// @variant f32_8 -DSTORAGE=float -DBLOCK_ROWS=8
// @variant bf16_1 -DSTORAGE=__nv_bfloat16 -DBLOCK_ROWS=1
// @variant bf16_8 -DSTORAGE=__nv_bfloat16 -DBLOCK_ROWS=8
// @variant f16_1 -DSTORAGE=__half -DBLOCK_ROWS=1
// @variant f16_8 -DSTORAGE=__half -DBLOCK_ROWS=8
#include "gemm_common.cuh"
#include "storage.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32, K_TILE = 512;

// Sums N values over the lanes that lie multiples of DISTANCE apart; each exchange halves what a lane holds. `index` grows
// by the position of v[0] among the N.
template <int N, int DISTANCE> __device__ __forceinline__ void sum_lanes(float* v, int lane, int& index) {
    if constexpr (DISTANCE < 32) {
        if constexpr (N > 1) {
            const bool upper = lane & DISTANCE;
#pragma unroll
            for (int i = 0; i < N / 2; ++i) {
                const float give = upper ? v[i] : v[i + N / 2], keep = upper ? v[i + N / 2] : v[i];
                v[i] = keep + __shfl_xor_sync(~0u, give, DISTANCE);
            }
            index += upper ? N / 2 : 0;
            sum_lanes<N / 2, DISTANCE * 2>(v, lane, index);
        } else {
            v[0] += __shfl_xor_sync(~0u, v[0], DISTANCE);
            sum_lanes<1, DISTANCE * 2>(v, lane, index);
        }
    }
}

// Rows of A from row0 on, as f32, k0 + K_TILE elements along k; place(k) tells where an element lies.
template <typename T, int N, typename Place>
__device__ __forceinline__ void stage(float (&x)[N][K_TILE], const T* a, long long row0, long long k0, const GemmArgs& g, Place place) {
    constexpr int TAKES = K_TILE / THREADS;
    float taken[N][TAKES];   // all loads first: one wait
#pragma unroll
    for (int r = 0; r < N; ++r)
#pragma unroll
        for (int j = 0; j < TAKES; ++j) {
            const long long row = row0 + r, k = k0 + j * THREADS + threadIdx.x;
            taken[r][j] = row < g.m && k < g.k ? widen(a[row * g.lda + k]) : 0.f;
        }
#pragma unroll
    for (int r = 0; r < N; ++r)
#pragma unroll
        for (int j = 0; j < TAKES; ++j) x[r][place(j * THREADS + threadIdx.x)] = taken[r][j];
}

// C = A·B with B as [k, n] rows. Two threads stand side by side along n, 128 along k.
template <typename T, int COUNT, bool VECTOR>
__global__ __launch_bounds__(THREADS) void gemm_thin_nn(const T* __restrict__ a, const T* __restrict__ b, const float* __restrict__ bias,
                                                        T* __restrict__ c, GemmArgs g) {
    constexpr int V = 16 / sizeof(T), COLS = 2 * V, LANES = THREADS / 2, LOADS = K_TILE / LANES;
    __shared__ float x[COUNT][K_TILE], sums[WARPS][COUNT][COLS];
    const long long row0 = static_cast<long long>(blockIdx.y) * COUNT, n0 = static_cast<long long>(blockIdx.x) * COLS;
    const int part = threadIdx.x % 2 * V, lane_k = threadIdx.x / 2;
    const int valid = static_cast<int>(max(0ll, min(static_cast<long long>(V), g.n - n0 - part)));
    const T* weights = b + n0 + part;
    float acc[COUNT][V] = {};
    for (long long k0 = 0; k0 < g.k; k0 += K_TILE) {
        Pack<T, V> w[LOADS];
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            const long long k = k0 + j * LANES + lane_k;
            w[j] = load_pack<VECTOR, V>(weights + k * g.ldb, k < g.k ? valid : 0);
        }
        __syncthreads();
        stage(x, a, row0, k0, g, [](int i) { return i; });
        __syncthreads();
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            if (k0 + j * LANES >= g.k) break;
#pragma unroll
            for (int r = 0; r < COUNT; ++r) {
                const float factor = x[r][j * LANES + lane_k];
#pragma unroll
                for (int i = 0; i < V; ++i) acc[r][i] = fmaf(factor, widen(w[j].v[i]), acc[r][i]);
            }
        }
    }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int index = 0;
    sum_lanes<COUNT * V, 2>(&acc[0][0], lane, index);
    // Where there are fewer values than lanes, several hold the same one.
    constexpr int KEPT = COUNT * V > 16 ? COUNT * V / 16 : 1;
#pragma unroll
    for (int i = 0; i < KEPT; ++i) sums[warp][(index + i) / V][part + (index + i) % V] = acc[0][i];
    __syncthreads();
    for (int i = threadIdx.x; i < COUNT * COLS; i += THREADS) {
        const long long row = row0 + i / COLS, n = n0 + i % COLS;
        if (row >= g.m || n >= g.n) continue;
        float sum = sums[0][i / COLS][i % COLS];
#pragma unroll
        for (int w = 1; w < WARPS; ++w) sum += sums[w][i / COLS][i % COLS];
        c[row * g.ldc + n] = narrow<T>(g.has_bias ? sum + bias[n] : sum);
    }
}

// C = A·Bᵀ with B as [n, k] rows. A warp takes four of them; its lanes stand side by side along k.
template <typename T, int COUNT, bool VECTOR>
__global__ __launch_bounds__(THREADS) void gemm_thin_nt(const T* __restrict__ a, const T* __restrict__ b, const float* __restrict__ bias,
                                                        float* __restrict__ c, GemmArgs g) {
    constexpr int V = 16 / sizeof(T), SPAN = 32 * V, TAKES = 4;
    __shared__ __align__(16) float x[COUNT][K_TILE];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long row0 = static_cast<long long>(blockIdx.y) * COUNT, n0 = (static_cast<long long>(blockIdx.x) * WARPS + warp) * TAKES;
    float acc[COUNT][TAKES] = {};
    for (long long k0 = 0; k0 < g.k; k0 += K_TILE) {
        __syncthreads();
        // A lane's V elements lie as float4s that the lanes read side by side.
        stage(x, a, row0, k0, g, [](int i) {
            const int in_span = i % SPAN;
            return i / SPAN * SPAN + in_span % V / 4 * 128 + in_span / V * 4 + in_span % 4;
        });
        __syncthreads();
#pragma unroll
        for (int j = 0; j < K_TILE / SPAN; ++j) {
            const long long k = k0 + j * SPAN + lane * V;
            if (k0 + j * SPAN >= g.k) break;
            const int valid = static_cast<int>(max(0ll, min(static_cast<long long>(V), g.k - k)));
            Pack<T, V> w[TAKES];
#pragma unroll
            for (int t = 0; t < TAKES; ++t) w[t] = load_pack<VECTOR, V>(b + (n0 + t) * g.ldb + k, n0 + t < g.n ? valid : 0);
#pragma unroll
            for (int r = 0; r < COUNT; ++r)
#pragma unroll
                for (int q = 0; q < V; q += 4) {
                    const float4 f = *reinterpret_cast<const float4*>(&x[r][j * SPAN + q / 4 * 128 + lane * 4]);
#pragma unroll
                    for (int t = 0; t < TAKES; ++t) {
                        acc[r][t] = fmaf(f.x, widen(w[t].v[q]), acc[r][t]);
                        acc[r][t] = fmaf(f.y, widen(w[t].v[q + 1]), acc[r][t]);
                        acc[r][t] = fmaf(f.z, widen(w[t].v[q + 2]), acc[r][t]);
                        acc[r][t] = fmaf(f.w, widen(w[t].v[q + 3]), acc[r][t]);
                    }
                }
        }
    }
    int index = 0;
    sum_lanes<COUNT * TAKES, 1>(&acc[0][0], lane, index);
    const long long row = row0 + index / TAKES, n = n0 + index % TAKES;
    if (row < g.m && n < g.n) c[row * g.ldc + n] = acc[0][0] + (g.has_bias ? bias[n] : 0.f);
}

template __global__ void gemm_thin_nn<STORAGE, BLOCK_ROWS, true>(const STORAGE*, const STORAGE*, const float*, STORAGE*, GemmArgs);
template __global__ void gemm_thin_nn<STORAGE, BLOCK_ROWS, false>(const STORAGE*, const STORAGE*, const float*, STORAGE*, GemmArgs);
template __global__ void gemm_thin_nt<STORAGE, BLOCK_ROWS, true>(const STORAGE*, const STORAGE*, const float*, float*, GemmArgs);
template __global__ void gemm_thin_nt<STORAGE, BLOCK_ROWS, false>(const STORAGE*, const STORAGE*, const float*, float*, GemmArgs);
