// Norms over the gradient arena and over the control spans, in f64 and in a fixed order, and the control clip.
#include "optim.cuh"
#include "reduce.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;

// One warp a block of GRAD_BLOCK elements: lane j adds the squares of elements j, j + 32, … in order, then the lanes are
// folded by halves. partial[block] = Σ (g · inv_scale)², the product rounded to f32; bad[block] = whether a g is Inf or NaN.
// The square of an f32 is exact in f64.
__global__ __launch_bounds__(THREADS) void grad_sums(const float* __restrict__ grads, const TailInputs* __restrict__ inputs,
                                                     const TailState* __restrict__ state, double* __restrict__ partial,
                                                     unsigned* __restrict__ bad, long long len) {
    constexpr int UNROLL = 16;
    const int lane = threadIdx.x % 32;
    const float inv = inverse_scale(inputs, state);
    const long long blocks = (len + GRAD_BLOCK - 1) / GRAD_BLOCK, step = static_cast<long long>(gridDim.x) * WARPS;
    for (long long block = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32; block < blocks; block += step) {
        const float* g = grads + block * GRAD_BLOCK;
        const int count = static_cast<int>(min(static_cast<long long>(GRAD_BLOCK), len - block * GRAD_BLOCK));
        double sum = 0;
        unsigned seen = 0;
        const auto add = [&](float v) {
            seen |= non_finite(v);
            const double x = __fmul_rn(v, inv);
            sum = fma(x, x, sum);
        };
        int i = lane;
        for (; i + 32 * (UNROLL - 1) < count; i += 32 * UNROLL) {
            float v[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) v[u] = g[i + 32 * u];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) add(v[u]);
        }
        for (; i < count; i += 32) add(g[i]);
        sum = warp_fold(sum);
        seen = __ballot_sync(~0u, seen) != 0;
        if (lane == 0) partial[block] = sum, bad[block] = seen;
    }
}

// A piece of the control spans: `rows` runs of `width` elements, `stride` apart.
struct SpanPiece {
    long long start, stride;
    int width, rows;
    __device__ __forceinline__ long long at(int e) const { return start + e / width * stride + e % width; }
};
static_assert(sizeof(SpanPiece) == 24, "as in mamba-kernels");

// One warp a piece: partial[piece] = Σ (g · inv_scale)². Nothing where the control clip is off.
__global__ __launch_bounds__(THREADS) void span_sums(const float* __restrict__ grads, const SpanPiece* __restrict__ pieces,
                                                     const TailInputs* __restrict__ inputs, const TailState* __restrict__ state,
                                                     double* __restrict__ partial, int count) {
    if (!is_finite(inputs->control_clip_max)) return;
    const int piece = blockIdx.x * WARPS + threadIdx.x / 32;
    if (piece >= count) return;
    const float inv = inverse_scale(inputs, state);
    const SpanPiece p = pieces[piece];
    double sum = 0;
#pragma unroll 8
    for (int e = threadIdx.x % 32; e < p.rows * p.width; e += 32) {
        const double x = __fmul_rn(grads[p.at(e)], inv);
        sum = fma(x, x, sum);
    }
    sum = warp_fold(sum);
    if (threadIdx.x % 32 == 0) partial[piece] = sum;
}

// Scales the control spans so that their norm is at most control_clip_max; every block folds the partial sums anew. The
// norm is left in `norm`, NaN where the clip is off.
__global__ __launch_bounds__(THREADS) void span_clip(float* __restrict__ grads, const SpanPiece* __restrict__ pieces,
                                                     const TailInputs* __restrict__ inputs, const double* __restrict__ partial,
                                                     double* __restrict__ norm, int count) {
    const double max = inputs->control_clip_max;
    if (!is_finite(max)) {
        if (blockIdx.x == 0 && threadIdx.x == 0) *norm = __longlong_as_double(0x7ff8000000000000ll);
        return;
    }
    const double found = __dsqrt_rn(block_fold<THREADS>(partial, count));
    if (blockIdx.x == 0 && threadIdx.x == 0) *norm = found;
    const float factor = clip_factor(found, max);
    if (factor == 1.f) return;
    for (int piece = blockIdx.x; piece < count; piece += gridDim.x) {
        const SpanPiece p = pieces[piece];
#pragma unroll 4
        for (int e = threadIdx.x; e < p.rows * p.width; e += THREADS) {
            float* g = grads + p.at(e);
            *g = __fmul_rn(*g, factor);
        }
    }
}
