// AdamW over a flat arena: one pass that also writes the half-precision shadow and refreshes A = −exp(A_log).
//
// Every operation is rounded to f32 in the order of mamba-optim's adamw module, none is fused: both have the same bits.
// Nothing moves where the step was not applied; the decision is read on the device.
#include "optim.cuh"
#include "storage.cuh"

constexpr int THREADS = 256, V = 4;
// Elements that one word of the group table describes: bit 0, whether they decay; the rest, 1 + the group of A that they
// refresh, or 0.
constexpr int GROUP = 64;

struct Step {
    float lr, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, bc1, bc2, inv_scale, clip;
};

__device__ __forceinline__ void update(float& p, float g, float& m, float& v, const Step& s, float decay) {
    g = __fmul_rn(__fmul_rn(g, s.inv_scale), s.clip);
    m = __fadd_rn(__fmul_rn(s.beta1, m), __fmul_rn(s.one_minus_beta1, g));
    v = __fadd_rn(__fmul_rn(s.beta2, v), __fmul_rn(__fmul_rn(s.one_minus_beta2, g), g));
    const float root = __fadd_rn(__fsqrt_rn(__fmul_rn(v, s.bc2)), s.eps);
    p = __fsub_rn(__fmul_rn(decay, p), __fmul_rn(s.lr, __fdiv_rn(__fmul_rn(m, s.bc1), root)));
}

// What follows from the new parameters of V neighbours.
template <typename W, bool VECTOR>
__device__ __forceinline__ void derive(const Pack<float, V>& p, W* __restrict__ shadow, float* __restrict__ neg_a, unsigned group,
                                       long long i, int valid) {
    if (shadow) {
        Pack<W, V> w;
#pragma unroll
        for (int e = 0; e < V; ++e) w.v[e] = narrow<W>(p.v[e]);
        store_pack<VECTOR, V>(shadow + i, w, valid);
    }
    if (group > 1) {
        Pack<float, V> a;
#pragma unroll
        for (int e = 0; e < V; ++e) a.v[e] = -expf(p.v[e]);
        store_pack<VECTOR, V>(neg_a + static_cast<long long>((group >> 1) - 1) * GROUP + i % GROUP, a, valid);
    }
}

template <typename W, bool VECTOR>
__device__ __forceinline__ void update_pack(float* __restrict__ params, const float* __restrict__ grads, float* __restrict__ m,
                                            float* __restrict__ v, W* __restrict__ shadow, float* __restrict__ neg_a, unsigned group,
                                            const Step& step, long long i, int valid) {
    Pack<float, V> p = load_pack<VECTOR, V>(params + i, valid), mi = load_pack<VECTOR, V>(m + i, valid);
    Pack<float, V> vi = load_pack<VECTOR, V>(v + i, valid);
    const Pack<float, V> g = load_pack<VECTOR, V>(grads + i, valid);
    const float decay = group & 1 ? step.decay : 1.f;
#pragma unroll
    for (int e = 0; e < V; ++e) update(p.v[e], g.v[e], mi.v[e], vi.v[e], step, decay);
    store_pack<VECTOR, V>(params + i, p, valid);
    store_pack<VECTOR, V>(m + i, mi, valid);
    store_pack<VECTOR, V>(v + i, vi, valid);
    derive<W, VECTOR>(p, shadow, neg_a, group, i, valid);
}

// W: type of the shadow; `shadow` may be null. All arenas start at multiples of 16 bytes.
template <typename W>
__global__ __launch_bounds__(THREADS) void adamw(float* __restrict__ params, const float* __restrict__ grads, float* __restrict__ m,
                                                 float* __restrict__ v, W* __restrict__ shadow, float* __restrict__ neg_a,
                                                 const unsigned* __restrict__ groups, const TailInputs* __restrict__ inputs,
                                                 const TailState* __restrict__ state, long long len) {
    if (!state->applied) return;
    const long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * V;
    if (i >= len) return;
    const Step step = {inputs->lr,  inputs->decay, inputs->beta1, inputs->one_minus_beta1, inputs->beta2, inputs->one_minus_beta2,
                       inputs->eps, state->bc1,    state->bc2,    state->inv_scale,        state->clip};
    const unsigned group = groups[i / GROUP];
    if (i + V <= len)
        update_pack<W, true>(params, grads, m, v, shadow, neg_a, group, step, i, V);
    else
        update_pack<W, false>(params, grads, m, v, shadow, neg_a, group, step, i, static_cast<int>(len - i));
}

// The derived values alone, for parameters that came from elsewhere.
template <typename W>
__global__ __launch_bounds__(THREADS) void refresh(const float* __restrict__ params, W* __restrict__ shadow, float* __restrict__ neg_a,
                                                   const unsigned* __restrict__ groups, long long len) {
    const long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * V;
    if (i >= len) return;
    const int valid = static_cast<int>(min(static_cast<long long>(V), len - i));
    const Pack<float, V> p = load_pack<false, V>(params + i, valid);
    derive<W, false>(p, shadow, neg_a, groups[i / GROUP], i, valid);
}

#define INSTANTIATE(W)                                                                                                            \
    template __global__ void adamw<W>(float*, const float*, float*, float*, W*, float*, const unsigned*, const TailInputs*,       \
                                      const TailState*, long long);                                                               \
    template __global__ void refresh<W>(const float*, W*, float*, const unsigned*, long long);
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)
INSTANTIATE(__half)
