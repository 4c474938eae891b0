// The sum of a softmax, in one pass.
#pragma once
#include <cfloat>

// Target of a token that does not count.
constexpr int IGNORE_INDEX = -100;

// A running maximum and the sum of exponentials relative to it. A NaN never becomes the maximum, but reaches the sum, and
// so does an infinite maximum (∞ − ∞). The start is finite, so that an empty part merges as nothing.
struct SoftmaxSum {
    float max, sum;
    __device__ __forceinline__ void add(float x) {
        const float m = fmaxf(max, x);
        sum = sum * __expf(max - m) + __expf(x - m);
        max = m;
    }
    // Four neighbours: one step of the maximum.
    __device__ __forceinline__ void add4(float4 x) {
        const float m = fmaxf(fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)), max);
        sum = sum * __expf(max - m) + ((__expf(x.x - m) + __expf(x.y - m)) + (__expf(x.z - m) + __expf(x.w - m)));
        max = m;
    }
    __device__ __forceinline__ void merge(SoftmaxSum o) {
        const float m = fmaxf(max, o.max);
        sum = sum * __expf(max - m) + o.sum * __expf(o.max - m);
        max = m;
    }
};

// Merged over the lanes of a warp; every lane gets the same bits.
__device__ __forceinline__ SoftmaxSum warp_merge(SoftmaxSum s) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) s.merge({__shfl_xor_sync(~0u, s.max, d), __shfl_xor_sync(~0u, s.sum, d)});
    return s;
}
