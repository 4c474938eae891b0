// Cross-entropy over rows of logits, and its gradient.
//
// Row t with target y and weight w (0 where y is the ignore index):
//   nll[t] = w · (log Σ_v exp(l[v]) − l[y]),   d_logits[t, v] = scale · w · (softmax(l)[v] − [v = y]).
// Every column takes part in the softmax, vocabulary padding included.
#include "softmax.cuh"
#include "storage.cuh"

constexpr int THREADS = 512;

__device__ __forceinline__ SoftmaxSum block_merge(SoftmaxSum s) {
    __shared__ SoftmaxSum parts[THREADS / 32];
    s = warp_merge(s);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = s;
    __syncthreads();
    s = parts[0];
    for (int i = 1; i < THREADS / 32; ++i) s.merge(parts[i]);
    return s;
}

template <typename O, bool ALIGNED>
__device__ __forceinline__ void write_gradient(O* __restrict__ d, const float* __restrict__ l, long long columns, int target, float max,
                                               float inv_sum, float weight) {
    constexpr int VEC = ALIGNED ? 4 : 1;
    for (long long v = static_cast<long long>(threadIdx.x) * VEC; v < columns; v += THREADS * VEC) {
        float x[VEC];
        if constexpr (ALIGNED)
            *reinterpret_cast<float4*>(x) = *reinterpret_cast<const float4*>(l + v);
        else
            x[0] = l[v];
        O out[VEC];
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            const float p = __expf(x[e] - max) * inv_sum;
            out[e] = narrow<O>(weight * (p - (v + e == target ? 1.f : 0.f)));
        }
        if constexpr (ALIGNED && sizeof(O) == 2)
            *reinterpret_cast<uint2*>(d + v) = *reinterpret_cast<const uint2*>(out);
        else if constexpr (ALIGNED)
            *reinterpret_cast<float4*>(d + v) = *reinterpret_cast<const float4*>(out);
        else
            d[v] = out[0];
    }
}

// One block a row. `weights` may be null (all 1), `d_logits` may be null (loss only). `scale` is read from the device, so
// that a captured step follows it. logits and d_logits are [rows, columns]; targets were checked by the host.
template <typename O, bool ALIGNED>
__global__ __launch_bounds__(THREADS) void cross_entropy(const float* __restrict__ logits, const int* __restrict__ targets,
                                                         const float* __restrict__ weights, const float* __restrict__ scale,
                                                         float* __restrict__ nll, O* __restrict__ d_logits, long long columns) {
    const long long row = blockIdx.x;
    const float* l = logits + row * columns;
    const int target = targets[row];
    const float weight = target == IGNORE_INDEX ? 0.f : (weights ? weights[row] : 1.f);
    if (target == IGNORE_INDEX) {
        if (threadIdx.x == 0) nll[row] = 0.f;
        if (d_logits)
            for (long long v = threadIdx.x; v < columns; v += THREADS) d_logits[row * columns + v] = narrow<O>(0.f);
        return;
    }
    SoftmaxSum s = {-FLT_MAX, 0.f};
    if constexpr (ALIGNED) {
        for (long long v = static_cast<long long>(threadIdx.x) * 4; v < columns; v += THREADS * 4) {
            const float4 x = *reinterpret_cast<const float4*>(l + v);
            s.add(x.x), s.add(x.y), s.add(x.z), s.add(x.w);
        }
    } else {
        for (long long v = threadIdx.x; v < columns; v += THREADS) s.add(l[v]);
    }
    s = block_merge(s);
    if (threadIdx.x == 0) nll[row] = weight * (logf(s.sum) + (s.max - l[target]));
    if (d_logits) write_gradient<O, ALIGNED>(d_logits + row * columns, l, columns, target, s.max, 1.f / s.sum, *scale * weight);
}

// Sums of one window, added to what earlier windows of the step left: mirrors `LossTotals` in mamba-kernels.
struct LossTotals {
    double nll, weight;
    unsigned long long tokens;
};

// One block; token order is fixed by the thread count.
__global__ __launch_bounds__(1024) void loss_totals(const float* __restrict__ nll, const int* __restrict__ targets,
                                                    const float* __restrict__ weights, LossTotals* __restrict__ totals,
                                                    long long rows) {
    __shared__ double sums[1024], masses[1024];
    __shared__ unsigned long long counts[1024];
    double sum = 0, mass = 0;
    unsigned long long count = 0;
    for (long long t = threadIdx.x; t < rows; t += 1024) {
        if (targets[t] == IGNORE_INDEX) continue;
        sum += nll[t];
        mass += weights ? weights[t] : 1.f;
        ++count;
    }
    sums[threadIdx.x] = sum, masses[threadIdx.x] = mass, counts[threadIdx.x] = count;
    for (int d = 512; d > 0; d >>= 1) {
        __syncthreads();
        if (threadIdx.x < d) {
            sums[threadIdx.x] += sums[threadIdx.x + d];
            masses[threadIdx.x] += masses[threadIdx.x + d];
            counts[threadIdx.x] += counts[threadIdx.x + d];
        }
    }
    if (threadIdx.x == 0) totals->nll += sums[0], totals->weight += masses[0], totals->tokens += counts[0];
}

template __global__ void cross_entropy<float, true>(const float*, const int*, const float*, const float*, float*, float*, long long);
template __global__ void cross_entropy<float, false>(const float*, const int*, const float*, const float*, float*, float*, long long);
template __global__ void cross_entropy<__nv_bfloat16, true>(const float*, const int*, const float*, const float*, float*, __nv_bfloat16*, long long);
template __global__ void cross_entropy<__nv_bfloat16, false>(const float*, const int*, const float*, const float*, float*, __nv_bfloat16*, long long);
template __global__ void cross_entropy<__half, true>(const float*, const int*, const float*, const float*, float*, __half*, long long);
template __global__ void cross_entropy<__half, false>(const float*, const int*, const float*, const float*, float*, __half*, long long);
