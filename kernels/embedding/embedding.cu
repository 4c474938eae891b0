// Embedding lookup and its gradient.
//
// The gradient row of a token id is the sum over its occurrences in token order. Occurrences are first sorted by id
// (stable, integer work only), then fixed runs of 32 sorted positions are summed side by side; ids that span several runs
// are folded in run order. No float atomics: the same ids give the same bits.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int THREADS = 256;
constexpr int RUN = 32;

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_f32(__half x) { return __half2float(x); }

// out[t, :] = table[ids[t], :]; one block a token.
template <typename W>
__global__ __launch_bounds__(THREADS) void embedding_forward(const W* __restrict__ table, const unsigned* __restrict__ ids,
                                                             float* __restrict__ out, long long dim) {
    const long long t = blockIdx.x;
    const W* row = table + static_cast<long long>(ids[t]) * dim;
    for (long long i = threadIdx.x; i < dim; i += THREADS) out[t * dim + i] = to_f32(row[i]);
}

// counts[id] += occurrences (integers: order does not matter). `counts` starts at zero.
__global__ __launch_bounds__(THREADS) void embedding_count(const unsigned* __restrict__ ids, int* __restrict__ counts, int tokens) {
    const int t = blockIdx.x * THREADS + threadIdx.x;
    if (t < tokens) atomicAdd(&counts[ids[t]], 1);
}

// Exclusive prefix sum of `counts` over `rows` ids, in place; one block.
__global__ __launch_bounds__(1024) void embedding_starts(int* __restrict__ counts, int rows) {
    __shared__ int sums[1024];
    const int per = (rows + 1023) / 1024;
    const int begin = min(rows, static_cast<int>(threadIdx.x) * per), end = min(rows, begin + per);
    int sum = 0;
    for (int i = begin; i < end; ++i) sum += counts[i];
    sums[threadIdx.x] = sum;
    for (int d = 1; d < 1024; d <<= 1) {
        __syncthreads();
        const int left = threadIdx.x >= d ? sums[threadIdx.x - d] : 0;
        __syncthreads();
        sums[threadIdx.x] += left;
    }
    int start = sums[threadIdx.x] - sum;
    for (int i = begin; i < end; ++i) {
        const int count = counts[i];
        counts[i] = start;
        start += count;
    }
}

// sorted[starts[id] + rank] = t, where rank counts the earlier tokens of the same id. Every token looks at all earlier
// ones, which pass through shared memory; at 16k tokens that is a few microseconds.
__global__ __launch_bounds__(THREADS) void embedding_sort(const unsigned* __restrict__ ids, const int* __restrict__ starts,
                                                          int* __restrict__ sorted, int tokens) {
    __shared__ unsigned seen[THREADS];
    const int t = blockIdx.x * THREADS + threadIdx.x;
    const unsigned id = t < tokens ? ids[t] : ~0u;
    int rank = 0;
    for (int first = 0; first <= static_cast<int>(blockIdx.x) * THREADS; first += THREADS) {
        __syncthreads();
        seen[threadIdx.x] = first + threadIdx.x < tokens ? ids[first + threadIdx.x] : ~0u;
        __syncthreads();
        const int limit = min(THREADS, t - first);
        if (limit == THREADS) {
#pragma unroll 16
            for (int i = 0; i < THREADS; ++i) rank += seen[i] == id;
        } else {
            for (int i = 0; i < limit; ++i) rank += seen[i] == id;
        }
    }
    if (t < tokens) sorted[starts[id] + rank] = t;
}

// One block a run of 32 sorted positions. Ids that lie wholly inside the run are added to their gradient row; the sums of
// the run's first and last id go to edges[run, 0 or 1, :] where that id goes on beyond the run.
__global__ __launch_bounds__(THREADS) void embedding_runs(const unsigned* __restrict__ ids, const int* __restrict__ sorted,
                                                          const float* __restrict__ d_out, float* __restrict__ d_table,
                                                          float* __restrict__ edges, int tokens, long long dim) {
    const int begin = blockIdx.x * RUN, end = min(tokens, begin + RUN);
    const bool open_left = begin > 0 && ids[sorted[begin - 1]] == ids[sorted[begin]];
    const bool open_right = end < tokens && ids[sorted[end]] == ids[sorted[end - 1]];
    for (long long i = threadIdx.x; i < dim; i += THREADS) {
        int p = begin;
        while (p < end) {
            const unsigned id = ids[sorted[p]];
            const bool first = p == begin;
            float sum = 0.f;
            while (p < end && ids[sorted[p]] == id) sum += d_out[static_cast<long long>(sorted[p++]) * dim + i];
            const bool last = p == end;
            if ((first && open_left) || (last && open_right)) {
                const long long side = first && open_left ? 0 : 1;
                edges[(2ll * blockIdx.x + side) * dim + i] = sum;
            } else {
                d_table[static_cast<long long>(id) * dim + i] += sum;
            }
        }
    }
}

// One block a run: where the run's last id begins here and goes on, folds that id's edge sums in run order.
__global__ __launch_bounds__(THREADS) void embedding_fold(const unsigned* __restrict__ ids, const int* __restrict__ sorted,
                                                          const float* __restrict__ edges, float* __restrict__ d_table, int tokens,
                                                          long long dim) {
    const int begin = blockIdx.x * RUN, end = min(tokens, begin + RUN);
    if (end >= tokens) return;
    const unsigned id = ids[sorted[end - 1]];
    if (ids[sorted[end]] != id) return;
    if (ids[sorted[begin]] == id && begin > 0 && ids[sorted[begin - 1]] == id) return;   // it began in an earlier run
    int runs = 1;
    while ((blockIdx.x + runs) * RUN < tokens && ids[sorted[(blockIdx.x + runs) * RUN]] == id) ++runs;
    for (long long i = threadIdx.x; i < dim; i += THREADS) {
        float sum = edges[(2ll * blockIdx.x + 1) * dim + i];
        for (int r = 1; r < runs; ++r) sum += edges[2ll * (blockIdx.x + r) * dim + i];
        d_table[static_cast<long long>(id) * dim + i] += sum;
    }
}

template __global__ void embedding_forward<float>(const float*, const unsigned*, float*, long long);
template __global__ void embedding_forward<__nv_bfloat16>(const __nv_bfloat16*, const unsigned*, float*, long long);
template __global__ void embedding_forward<__half>(const __half*, const unsigned*, float*, long long);
