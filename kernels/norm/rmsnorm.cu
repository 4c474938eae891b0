// RMSNorm over the rows of the residual stream, with the residual addition before it, forward and backward.
//
// Forward:  r = residual + add,   rstd = 1 / sqrt(mean(r²) + eps),   out = r · rstd · weight.
// Backward: g = d_out · weight,   d_r (+)= rstd · (g − r̂ · mean(g · r̂)) with r̂ = r · rstd,   d_weight += Σ rows d_out · r̂.
//
// WARPS warps work on a row; a lane owns PACKS packs of 4 columns. A row's bits depend on the row alone. The gradient of
// the weight leaves one part a block; the number of blocks depends on the number of rows only.
//
// T: storage type of the addend and of the copy of the residual gradient. O: storage type of `out` and `d_out`.
//
// @variant f32_narrow -DADDEND=float -DOUTPUT=float -DNARROW
// @variant f32_wide -DADDEND=float -DOUTPUT=float -DWIDE
// @variant bf16_narrow -DADDEND=__nv_bfloat16 -DOUTPUT=__nv_bfloat16 -DNARROW
// @variant bf16_wide -DADDEND=__nv_bfloat16 -DOUTPUT=__nv_bfloat16 -DWIDE
// @variant f16_narrow -DADDEND=__half -DOUTPUT=__half -DNARROW
// @variant f16_wide -DADDEND=__half -DOUTPUT=__half -DWIDE
// @variant bf16_f32_narrow -DADDEND=__nv_bfloat16 -DOUTPUT=float -DNARROW
// @variant bf16_f32_wide -DADDEND=__nv_bfloat16 -DOUTPUT=float -DWIDE
// @variant f16_f32_narrow -DADDEND=__half -DOUTPUT=float -DNARROW
// @variant f16_f32_wide -DADDEND=__half -DOUTPUT=float -DWIDE
#include "reduce.cuh"
#include "storage.cuh"

constexpr int V = 4;

template <int WARPS> struct Shape {
    static constexpr int THREADS = WARPS < 4 ? 128 : WARPS * 32;
    static constexpr int ROWS = THREADS / (WARPS * 32);
    static_assert(ROWS == 1 || WARPS == 1, "rows of several warps share the block's barrier");
};

// First column of a lane's pack k.
template <int WARPS> __device__ __forceinline__ int column(int k) {
    const int thread = WARPS == 1 ? threadIdx.x % 32 : threadIdx.x;
    return (k * WARPS * 32 + thread) * V;
}

template <typename T, typename O, int PACKS, int WARPS, bool VECTOR>
__global__ __launch_bounds__(Shape<WARPS>::THREADS) void rms_norm_forward(
    const float* __restrict__ residual, const T* __restrict__ add, const float* __restrict__ weight, float* __restrict__ sum,
    O* __restrict__ out, float* __restrict__ rstd, float eps, long long rows, int dim) {
    using S = Shape<WARPS>;
    __shared__ float slots[WARPS];
    const long long row = static_cast<long long>(blockIdx.x) * S::ROWS + (WARPS == 1 ? threadIdx.x / 32 : 0);
    if (row >= rows) return;
    const long long base = row * dim;
    Pack<float, V> x[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; ++k) x[k] = load_pack<VECTOR, V>(residual + base + column<WARPS>(k), dim - column<WARPS>(k));
    if (add) {
        Pack<T, V> a[PACKS];
#pragma unroll
        for (int k = 0; k < PACKS; ++k) a[k] = load_pack<VECTOR, V>(add + base + column<WARPS>(k), dim - column<WARPS>(k));
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
#pragma unroll
            for (int i = 0; i < V; ++i) x[k].v[i] += widen(a[k].v[i]);
            store_pack<VECTOR, V>(sum + base + column<WARPS>(k), x[k], dim - column<WARPS>(k));
        }
    }
    float squares = 0.f;
#pragma unroll
    for (int k = 0; k < PACKS; ++k)
#pragma unroll
        for (int i = 0; i < V; ++i) squares = fmaf(x[k].v[i], x[k].v[i], squares);
    const float scale = rsqrtf(block_sum<WARPS>(squares, slots) / static_cast<float>(dim) + eps);
    if (column<WARPS>(0) == 0) rstd[row] = scale;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
        const int c = column<WARPS>(k);
        const Pack<float, V> w = load_pack<VECTOR, V>(weight + c, dim - c);
        Pack<O, V> y;
#pragma unroll
        for (int i = 0; i < V; ++i) y.v[i] = narrow<O>(x[k].v[i] * scale * w.v[i]);
        store_pack<VECTOR, V>(out + base + c, y, dim - c);
    }
}

// One part of the weight gradient: the rows of a block in order, then its warps in order.
template <int PACKS, int WARPS, bool VECTOR>
__device__ __forceinline__ void store_part(const Pack<float, V> (&d_weight)[PACKS], float* __restrict__ part, int dim) {
    using S = Shape<WARPS>;
    if constexpr (S::ROWS == 1) {
#pragma unroll
        for (int k = 0; k < PACKS; ++k) store_pack<VECTOR, V>(part + column<WARPS>(k), d_weight[k], dim - column<WARPS>(k));
    } else {
        constexpr int COLUMNS = PACKS * 32 * V;
        __shared__ Pack<float, V> sums[S::ROWS][COLUMNS / V];
#pragma unroll
        for (int k = 0; k < PACKS; ++k) sums[threadIdx.x / 32][column<WARPS>(k) / V] = d_weight[k];
        __syncthreads();
        for (int p = threadIdx.x; p < COLUMNS / V; p += S::THREADS) {
            Pack<float, V> total = sums[0][p];
#pragma unroll
            for (int r = 1; r < S::ROWS; ++r)
#pragma unroll
                for (int i = 0; i < V; ++i) total.v[i] += sums[r][p].v[i];
            store_pack<VECTOR, V>(part + p * V, total, dim - p * V);
        }
    }
}

template <typename T, typename O, int PACKS, int WARPS, bool VECTOR>
__global__ __launch_bounds__(Shape<WARPS>::THREADS) void rms_norm_backward(
    const float* __restrict__ residual, const float* __restrict__ rstd, const float* __restrict__ weight,
    const O* __restrict__ d_out, float* __restrict__ d_residual, T* __restrict__ d_add, float* __restrict__ partial,
    int accumulate, long long rows, int dim) {
    using S = Shape<WARPS>;
    __shared__ float slots[WARPS];
    Pack<float, V> d_weight[PACKS] = {};
    const long long step = static_cast<long long>(gridDim.x) * S::ROWS;
    for (long long row = static_cast<long long>(blockIdx.x) * S::ROWS + (WARPS == 1 ? threadIdx.x / 32 : 0); row < rows; row += step) {
        const long long base = row * dim;
        Pack<float, V> x[PACKS], old[PACKS] = {};
        Pack<O, V> d[PACKS];
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const int c = column<WARPS>(k);
            x[k] = load_pack<VECTOR, V>(residual + base + c, dim - c);
            d[k] = load_pack<VECTOR, V>(d_out + base + c, dim - c);
            if (accumulate) old[k] = load_pack<VECTOR, V>(d_residual + base + c, dim - c);
        }
        const float scale = rstd[row];
        float dot = 0.f;
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const Pack<float, V> w = load_pack<VECTOR, V>(weight + column<WARPS>(k), dim - column<WARPS>(k));
#pragma unroll
            for (int i = 0; i < V; ++i) {
                x[k].v[i] *= scale;
                const float g = widen(d[k].v[i]);
                d_weight[k].v[i] = fmaf(g, x[k].v[i], d_weight[k].v[i]);
                dot = fmaf(g * w.v[i], x[k].v[i], dot);
            }
        }
        const float mean = block_sum<WARPS>(dot, slots) / static_cast<float>(dim);
#pragma unroll
        for (int k = 0; k < PACKS; ++k) {
            const int c = column<WARPS>(k);
            const Pack<float, V> w = load_pack<VECTOR, V>(weight + c, dim - c);
            Pack<T, V> copy;
#pragma unroll
            for (int i = 0; i < V; ++i) {
                old[k].v[i] = fmaf(scale, widen(d[k].v[i]) * w.v[i] - x[k].v[i] * mean, old[k].v[i]);
                copy.v[i] = narrow<T>(old[k].v[i]);
            }
            store_pack<VECTOR, V>(d_residual + base + c, old[k], dim - c);
            if (d_add) store_pack<VECTOR, V>(d_add + base + c, copy, dim - c);
        }
    }
    store_part<PACKS, WARPS, VECTOR>(d_weight, partial + static_cast<long long>(blockIdx.x) * dim, dim);
}

#define INSTANTIATE(PACKS, WARPS, VECTOR)                                                                                             \
    template __global__ void rms_norm_forward<ADDEND, OUTPUT, PACKS, WARPS, VECTOR>(                                                  \
        const float*, const ADDEND*, const float*, float*, OUTPUT*, float*, float, long long, int);                                   \
    template __global__ void rms_norm_backward<ADDEND, OUTPUT, PACKS, WARPS, VECTOR>(                                                 \
        const float*, const float*, const float*, const OUTPUT*, float*, ADDEND*, float*, int, long long, int);
#ifdef NARROW
INSTANTIATE(2, 1, true)
INSTANTIATE(3, 1, true)
INSTANTIATE(6, 1, true)
#else
INSTANTIATE(2, 4, true)
INSTANTIATE(4, 4, true)
INSTANTIATE(4, 16, true)
INSTANTIATE(2, 4, false)
INSTANTIATE(4, 16, false)
#endif
