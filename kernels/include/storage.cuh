// Storage types: conversion to and from f32, and vector access with a scalar fallback.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }

template <typename T> __device__ __forceinline__ T narrow(float x);
template <> __device__ __forceinline__ float narrow<float>(float x) { return x; }
template <> __device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ __forceinline__ __half narrow<__half>(float x) { return __float2half_rn(x); }

// V elements as they lie in memory.
template <typename T, int V> struct alignas(V * sizeof(T) < 16 ? V * sizeof(T) : 16) Pack {
    T v[V];
};

// V neighbouring elements of which the first `valid` exist; the others read as 0. VECTOR: the address is aligned to the
// vector, and all V or none exist.
template <bool VECTOR, int V, typename T> __device__ __forceinline__ Pack<T, V> load_pack(const T* p, int valid) {
    Pack<T, V> x;
    if constexpr (VECTOR) {
        if (valid > 0) return *reinterpret_cast<const Pack<T, V>*>(p);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) x.v[i] = !VECTOR && i < valid ? p[i] : narrow<T>(0.f);
    return x;
}
template <bool VECTOR, int V, typename T> __device__ __forceinline__ void store_pack(T* p, const Pack<T, V>& x, int valid) {
    if constexpr (VECTOR) {
        if (valid > 0) *reinterpret_cast<Pack<T, V>*>(p) = x;
    } else {
#pragma unroll
        for (int i = 0; i < V; ++i)
            if (i < valid) p[i] = x.v[i];
    }
}

constexpr float LOG2E = 1.4426950408889634f;

// 2^x by the special-function unit, about 2 ulp; NaN stays NaN.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / (1 + e^-x) with fast exponential and division, about 1e-7 + 6e-8·|x| relative; NaN stays NaN.
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.f, 1.f + exp2_fast(-LOG2E * x)); }

// ln(1 + e^x) = max(x, 0) + log1p(e), e = e^-|x| ≤ 1, with log1p(e) = e·P(e), P a minimax polynomial (3e-8). Relative
// error below 3e-7 for every x. Above 20 it is x to the last bit, as in the reference: e·P(e) is less than half of it.
__device__ __forceinline__ float softplus(float x) {
    const float e = exp2_fast(-LOG2E * fabsf(x));
    float p = fmaf(e, 0.005364829208701849f, -0.030065810307860374f);
    p = fmaf(e, p, 0.07920456677675247f);
    p = fmaf(e, p, -0.13753804564476013f);
    p = fmaf(e, p, 0.1915365606546402f);
    p = fmaf(e, p, -0.24857163429260254f);
    p = fmaf(e, p, 0.3332132399082184f);
    p = fmaf(e, p, -0.49999648332595825f);
    p = fmaf(e, p, 1.f);
    return fmaf(e, p, fmaxf(x, 0.f));
}
