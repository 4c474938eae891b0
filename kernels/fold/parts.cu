// Ordered sums over the parts that kernels left: the last step of every reduction that has no float atomics.
#include "storage.cuh"

constexpr int THREADS = 256, SLICES = 8, COLUMNS = THREADS / SLICES, MOST = 8;

// out[i] += Σ over parts, in a fixed order, of partial[part · stride + row(i)], where element i = (r, k) of a
// [rows, cols] matrix lies at r · row_stride + k: a column range of wider rows can be folded. Mirrors `FoldJob`.
struct FoldJob {
    long long partial, out, len, stride, row_stride;
    int parts, cols, first_block, reserved;
};
struct FoldJobs {
    FoldJob job[MOST];
    int count, reserved;
};
static_assert(sizeof(FoldJobs) == 456, "keep in step with FoldJobs in fold/parts.rs");

// All jobs side by side: each is too small to fill the chip.
__global__ __launch_bounds__(THREADS) void fold_parts(const float* __restrict__ partial, float* __restrict__ out,
                                                      const __grid_constant__ FoldJobs jobs) {
    __shared__ float sums[SLICES][COLUMNS];
    int index = 0;
    while (index + 1 < jobs.count && blockIdx.x >= jobs.job[index + 1].first_block) ++index;
    const FoldJob& job = jobs.job[index];
    const int column = threadIdx.x % COLUMNS, slice = threadIdx.x / COLUMNS;
    const int per = (job.parts + SLICES - 1) / SLICES, begin = min(job.parts, slice * per), end = min(job.parts, begin + per);
    const long long i = static_cast<long long>(blockIdx.x - job.first_block) * COLUMNS + column, stride = job.stride;
    float sum = 0.f;
    if (i < job.len) {
        const float* p = partial + job.partial + i / job.cols * job.row_stride + i % job.cols;
#pragma unroll 8
        for (int part = begin; part < end; ++part) sum += p[part * stride];
    }
    sums[slice][column] = sum;
    __syncthreads();
    if (slice == 0 && i < job.len) {
        float total = sums[0][column];
#pragma unroll
        for (int s = 1; s < SLICES; ++s) total += sums[s][column];
        out[job.out + i] += total;
    }
}
