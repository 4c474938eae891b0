// Casts, sums, factors and column sums.
#include "storage.cuh"
#include <cstdint>

constexpr int THREADS = 256, V = 4;

// Whether packs of V elements may be moved whole.
template <typename T> __device__ __forceinline__ bool aligned(const T* p) { return reinterpret_cast<std::uintptr_t>(p) % (V * sizeof(T)) == 0; }

// f(i, valid, VECTOR) over the packs of `len` elements.
template <typename F> __device__ __forceinline__ void for_packs(long long len, bool vector, F f) {
    const long long step = static_cast<long long>(gridDim.x) * THREADS * V;
    for (long long i = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * V; i < len; i += step)
        f(i, static_cast<int>(min(static_cast<long long>(V), len - i)), vector && i + V <= len);
}

template <typename T> __device__ __forceinline__ Pack<T, V> load(const T* p, int valid, bool vector) {
    return vector ? load_pack<true, V>(p, valid) : load_pack<false, V>(p, valid);
}
template <typename T> __device__ __forceinline__ void store(T* p, const Pack<T, V>& x, int valid, bool vector) {
    if (vector)
        store_pack<true, V>(p, x, valid);
    else
        store_pack<false, V>(p, x, valid);
}

// out = in, rounded to nearest even.
template <typename I, typename O>
__global__ __launch_bounds__(THREADS) void cast(const I* __restrict__ in, O* __restrict__ out, long long len) {
    for_packs(len, aligned(in) && aligned(out), [=](long long i, int valid, bool vector) {
        const Pack<I, V> x = load(in + i, valid, vector);
        Pack<O, V> y;
#pragma unroll
        for (int e = 0; e < V; ++e) y.v[e] = narrow<O>(widen(x.v[e]));
        store(out + i, y, valid, vector);
    });
}

// out += in, summed in f32.
template <typename T>
__global__ __launch_bounds__(THREADS) void add(const T* __restrict__ in, T* __restrict__ out, long long len) {
    for_packs(len, aligned(in) && aligned(out), [=](long long i, int valid, bool vector) {
        const Pack<T, V> x = load(in + i, valid, vector);
        Pack<T, V> y = load<T>(out + i, valid, vector);
#pragma unroll
        for (int e = 0; e < V; ++e) y.v[e] = narrow<T>(widen(y.v[e]) + widen(x.v[e]));
        store(out + i, y, valid, vector);
    });
}

// out = in · factor, or in / factor where `divide`. The factor is read on the device.
template <typename T>
__global__ __launch_bounds__(THREADS) void scale(const T* __restrict__ in, const float* __restrict__ factor, float* __restrict__ out,
                                                 int divide, long long len) {
    const float f = *factor;
    for_packs(len, aligned(in) && aligned(out), [=](long long i, int valid, bool vector) {
        const Pack<T, V> x = load(in + i, valid, vector);
        Pack<float, V> y;
#pragma unroll
        for (int e = 0; e < V; ++e) y.v[e] = divide ? __fdiv_rn(widen(x.v[e]), f) : widen(x.v[e]) * f;
        store(out + i, y, valid, vector);
    });
}

template <typename T> __global__ __launch_bounds__(THREADS) void fill(T* __restrict__ out, float value, long long len) {
    for_packs(len, aligned(out), [=](long long i, int valid, bool vector) {
        Pack<T, V> y;
#pragma unroll
        for (int e = 0; e < V; ++e) y.v[e] = narrow<T>(value);
        store(out + i, y, valid, vector);
    });
}

// x[rows, cols] += bias[cols], summed in f32.
template <typename T>
__global__ __launch_bounds__(THREADS) void add_bias(T* __restrict__ x, const float* __restrict__ bias, long long rows, int cols, long long ld) {
    const long long total = rows * cols, step = static_cast<long long>(gridDim.x) * THREADS;
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < total; i += step) {
        const long long row = i / cols;
        const int c = static_cast<int>(i - row * cols);
        T* at = x + row * ld + c;
        *at = narrow<T>(widen(*at) + bias[c]);
    }
}

// partial[part, c] = Σ of x[row, c] over the rows of a part: SLICES running sums a column, added in order. Blocks in x
// take columns, in y parts.
template <typename T>
__global__ __launch_bounds__(THREADS) void column_sums(const T* __restrict__ x, float* __restrict__ partial, long long rows, int cols,
                                                       long long ld, long long rows_per_part) {
    constexpr int COLUMNS = 32, SLICES = THREADS / COLUMNS;
    __shared__ float sums[SLICES][COLUMNS];
    const int lane = threadIdx.x % COLUMNS, slice = threadIdx.x / COLUMNS, c = blockIdx.x * COLUMNS + lane;
    const long long begin = blockIdx.y * rows_per_part, end = min(rows, begin + rows_per_part);
    float sum = 0.f;
    if (c < cols) {
#pragma unroll 8
        for (long long row = begin + slice; row < end; row += SLICES) sum += widen(x[row * ld + c]);
    }
    sums[slice][lane] = sum;
    __syncthreads();
    if (slice != 0 || c >= cols) return;
#pragma unroll
    for (int s = 1; s < SLICES; ++s) sum += sums[s][lane];
    partial[static_cast<long long>(blockIdx.y) * cols + c] = sum;
}

template __global__ void cast<float, __nv_bfloat16>(const float*, __nv_bfloat16*, long long);
template __global__ void cast<float, __half>(const float*, __half*, long long);
template __global__ void cast<__nv_bfloat16, float>(const __nv_bfloat16*, float*, long long);
template __global__ void cast<__half, float>(const __half*, float*, long long);
#define INSTANTIATE(T)                                                                             \
    template __global__ void add<T>(const T*, T*, long long);                                      \
    template __global__ void scale<T>(const T*, const float*, float*, int, long long);             \
    template __global__ void fill<T>(T*, float, long long);                                        \
    template __global__ void add_bias<T>(T*, const float*, long long, int, long long);             \
    template __global__ void column_sums<T>(const T*, float*, long long, int, long long, long long);
INSTANTIATE(float)
INSTANTIATE(__nv_bfloat16)
INSTANTIATE(__half)
