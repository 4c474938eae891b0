// Ordered sums over the parts that a kernel left: the last step of every reduction that has no float atomics.
#include "storage.cuh"

constexpr int THREADS = 256, SLICES = 8, COLUMNS = THREADS / SLICES;

// out[i] += Σ over parts, in a fixed order, of partial[part · stride + row(i)], where element i = (r, k) of an
// [rows, cols] matrix lies at r · row_stride + k: a column range of wider rows can be folded.
__global__ __launch_bounds__(THREADS) void fold_parts(const float* __restrict__ partial, float* __restrict__ out, long long len,
                                                      int parts, long long stride, int cols, long long row_stride) {
    __shared__ float sums[SLICES][COLUMNS];
    const int column = threadIdx.x % COLUMNS, slice = threadIdx.x / COLUMNS;
    const int per = (parts + SLICES - 1) / SLICES, begin = min(parts, slice * per), end = min(parts, begin + per);
    for (long long first = static_cast<long long>(blockIdx.x) * COLUMNS; first < len; first += static_cast<long long>(gridDim.x) * COLUMNS) {
        const long long i = first + column;
        float sum = 0.f;
        if (i < len) {
            const float* p = partial + i / cols * row_stride + i % cols;
#pragma unroll 8
            for (int part = begin; part < end; ++part) sum += p[part * stride];
        }
        sums[slice][column] = sum;
        __syncthreads();
        if (slice == 0 && i < len) {
            float total = sums[0][column];
#pragma unroll
            for (int s = 1; s < SLICES; ++s) total += sums[s][column];
            out[i] += total;
        }
        __syncthreads();
    }
}
