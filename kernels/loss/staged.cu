// Cross-entropy with its gradient over wide rows, which are read once: a block keeps its row in shared memory.
//
// The formulas are those of cross_entropy.cu. One block a multiprocessor walks over rows; while it turns one into
// its gradient, the next one is loaded into the places that become free. Every thread loads what it reads itself, so that
// only the sums pass a barrier.
#include "softmax.cuh"
#include "storage.cuh"

constexpr int THREADS = 1024, WARPS = THREADS / 32;
// Parts of a row that are waited for on their own.
constexpr int STAGES = 4;

__device__ __forceinline__ void copy_async(float4* shared, const float4* global) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(global) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// What every part of the kernel knows of the problem. A row has `packs` packs of four columns; stage s holds the packs
// [s · per_stage, (s + 1) · per_stage), and `per_stage` is a multiple of THREADS.
struct Rows {
    const float4* logits;
    float4* staged;
    const int* targets;
    long long rows;
    int packs, per_stage;

    __device__ __forceinline__ int end(int stage) const { return min(packs, (stage + 1) * per_stage); }
    __device__ __forceinline__ int target(long long row) const { return row < rows ? targets[row] : IGNORE_INDEX; }
    // A group is committed even where nothing is loaded, so that waits can count.
    __device__ __forceinline__ void load(long long row, int stage, bool counted) const {
        if (counted)
            for (int p = stage * per_stage + threadIdx.x; p < end(stage); p += THREADS) copy_async(staged + p, logits + row * packs + p);
        commit();
    }
};

template <int LEFT> __device__ __forceinline__ void add_stage(const Rows& r, int target, SoftmaxSum& s, float& at_target) {
    wait<LEFT>();
    constexpr int STAGE = STAGES - 1 - LEFT;
    for (int p = STAGE * r.per_stage + threadIdx.x; p < r.end(STAGE); p += THREADS) {
        const float4 x = r.staged[p];
        s.add4(x);
        if (target / 4 == p) at_target = target % 4 < 2 ? (target % 4 == 0 ? x.x : x.y) : (target % 4 == 2 ? x.z : x.w);
    }
}

template <typename O>
__device__ __forceinline__ void write_stage(const Rows& r, int stage, O* __restrict__ d, int target, float max, float inv_sum, float weight) {
    for (int p = stage * r.per_stage + threadIdx.x; p < r.end(stage); p += THREADS) {
        const float4 x = r.staged[p];
        const float l[4] = {x.x, x.y, x.z, x.w};
        Pack<O, 4> y;
#pragma unroll
        for (int e = 0; e < 4; ++e) y.v[e] = narrow<O>(weight * (__expf(l[e] - max) * inv_sum - (4 * p + e == target ? 1.f : 0.f)));
        store_pack<true, 4>(d + 4ll * p, y, 4);
    }
}

template <typename O> __device__ __forceinline__ void clear_stage(const Rows& r, int stage, O* __restrict__ d) {
    for (int p = stage * r.per_stage + threadIdx.x; p < r.end(stage); p += THREADS) store_pack<true, 4>(d + 4ll * p, Pack<O, 4>{}, 4);
}

// Dynamic shared memory: one row. `columns` is a multiple of 4, logits and gradient start at multiples of 16 bytes.
template <typename O>
__global__ __launch_bounds__(THREADS, 1) void cross_entropy_staged(const float* __restrict__ logits, const int* __restrict__ targets,
                                                                   const float* __restrict__ weights, const float* __restrict__ scale,
                                                                   float* __restrict__ nll, O* __restrict__ d_logits, long long columns,
                                                                   long long rows) {
    extern __shared__ float4 staged[];
    // Two of each: a fast warp may be one counted row ahead of a slow one.
    __shared__ SoftmaxSum parts[2][WARPS];
    __shared__ float at_targets[2];
    const int packs = static_cast<int>(columns / 4), rounds = (packs + THREADS - 1) / THREADS;
    const Rows r = {reinterpret_cast<const float4*>(logits), staged, targets, rows, packs, (rounds + STAGES - 1) / STAGES * THREADS};
    const float factor = *scale;
    long long row = blockIdx.x;
    int target = r.target(row);
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) r.load(row, stage, target != IGNORE_INDEX);
    for (int turn = 0; row < rows;) {
        const long long next = row + gridDim.x;
        const int next_target = r.target(next);
        SoftmaxSum s = {-FLT_MAX, 0.f};
        float weight = 0.f;
        if (target != IGNORE_INDEX) {
            float at_target = 0.f;
            add_stage<3>(r, target, s, at_target);
            add_stage<2>(r, target, s, at_target);
            add_stage<1>(r, target, s, at_target);
            add_stage<0>(r, target, s, at_target);
            s = warp_merge(s);
            if (threadIdx.x % 32 == 0) parts[turn][threadIdx.x / 32] = s;
            if (target / 4 % THREADS == threadIdx.x) at_targets[turn] = at_target;
            __syncthreads();
            s = warp_merge(parts[turn][threadIdx.x % 32]);
            weight = weights ? weights[row] : 1.f;
            if (threadIdx.x == 0) nll[row] = weight * (logf(s.sum) + (s.max - at_targets[turn]));
            turn ^= 1;
        } else if (threadIdx.x == 0) {
            nll[row] = 0.f;
        }
        O* d = d_logits + row * columns;
        const float inv_sum = 1.f / s.sum;
#pragma unroll 1
        for (int stage = 0; stage < STAGES; ++stage) {
            if (target != IGNORE_INDEX)
                write_stage<O>(r, stage, d, target, s.max, inv_sum, factor * weight);
            else
                clear_stage<O>(r, stage, d);
            r.load(next, stage, next_target != IGNORE_INDEX);
        }
        row = next, target = next_target;
    }
}

template __global__ void cross_entropy_staged<float>(const float*, const int*, const float*, const float*, float*, float*, long long, long long);
template __global__ void cross_entropy_staged<__nv_bfloat16>(const float*, const int*, const float*, const float*, float*, __nv_bfloat16*,
                                                             long long, long long);
template __global__ void cross_entropy_staged<__half>(const float*, const int*, const float*, const float*, float*, __half*, long long, long long);
