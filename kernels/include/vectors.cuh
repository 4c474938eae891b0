// Small vectors between registers and memory.
#pragma once
#include "storage.cuh"

// N neighbouring floats, aligned to their size, or to 16 bytes if that is less.
template <int N> __device__ __forceinline__ void read(float (&r)[N], const float* p) {
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 4) *reinterpret_cast<float4*>(&r[i]) = *reinterpret_cast<const float4*>(p + i);
    } else if constexpr (N == 2) {
        *reinterpret_cast<float2*>(r) = *reinterpret_cast<const float2*>(p);
    } else {
        r[0] = *p;
    }
}
template <int N> __device__ __forceinline__ void write(float* p, const float (&r)[N]) {
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 4) *reinterpret_cast<float4*>(p + i) = make_float4(r[i], r[i + 1], r[i + 2], r[i + 3]);
    } else if constexpr (N == 2) {
        *reinterpret_cast<float2*>(p) = make_float2(r[0], r[1]);
    } else {
        *p = r[0];
    }
}

// V neighbouring elements as words.
template <typename T, int V> struct Raw {
    static constexpr int WORDS = (V * sizeof(T) + 3) / 4;
    unsigned w[WORDS];
    __device__ __forceinline__ float operator[](int k) const {
        if constexpr (sizeof(T) == 4) return __uint_as_float(w[k]);
        else {
            const unsigned short bits = static_cast<unsigned short>(w[k / 2] >> (k % 2 * 16));
            return widen(*reinterpret_cast<const T*>(&bits));
        }
    }
};
// As `load_pack`.
template <bool VECTOR, int V, typename T> __device__ __forceinline__ Raw<T, V> load_raw(const T* p, int valid) {
    Raw<T, V> r = {};
    if constexpr (VECTOR) {
        constexpr int BYTES = V * sizeof(T);
        if (valid <= 0) return r;
        if constexpr (BYTES == 16) *reinterpret_cast<uint4*>(r.w) = *reinterpret_cast<const uint4*>(p);
        else if constexpr (BYTES == 8) *reinterpret_cast<uint2*>(r.w) = *reinterpret_cast<const uint2*>(p);
        else if constexpr (BYTES == 4) r.w[0] = *reinterpret_cast<const unsigned*>(p);
        else r.w[0] = *reinterpret_cast<const unsigned short*>(p);
    } else {
#pragma unroll
        for (int k = 0; k < V; ++k) {
            const T x = k < valid ? p[k] : narrow<T>(0.f);
            if constexpr (sizeof(T) == 4) r.w[k] = __float_as_uint(x);
            else r.w[k / 2] |= static_cast<unsigned>(*reinterpret_cast<const unsigned short*>(&x)) << (k % 2 * 16);
        }
    }
    return r;
}
