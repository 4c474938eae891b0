// bf16 and f16 products on Hopper: bulk tensor copies fill a ring of shared-memory stages, two warpgroups multiply.
//
// One producer warpgroup and two consumers, each with 64 of the tile's 128 rows. Blocks are persistent: they walk the
// (split, tile) list with the grid as stride; a tile's bits do not depend on the number of blocks.
#include "gemm_common.cuh"
#include "wgmma.cuh"

constexpr int BM = 128, BK = 64, THREADS = 384;
constexpr int BOX = 64;                         // elements of one 128-byte swizzled row
constexpr int STAGE_ALIGN = 1024;

template <int BN> struct Ring {
    static constexpr int A_BYTES = BM * BK * 2;
    // MN-major operands come in boxes of 64 columns.
    static constexpr int B_BYTES = (BN + BOX - 1) / BOX * BOX * BK * 2;
    static constexpr int STAGE = A_BYTES + B_BYTES;
    static constexpr int STAGES = BN > 128 ? 4 : 6;
    static constexpr int BYTES = STAGES * STAGE + STAGE_ALIGN;
};

struct Cursor {
    int stage = 0;
    unsigned phase = 0;
    template <int STAGES> __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

struct Work {
    long long m0, n0, k_begin, k_end, tile;
    int z;
};
template <int BN> __device__ __forceinline__ Work work_item(long long i, const GemmArgs& g) {
    const long long tiles_m = (g.m + BM - 1) / BM, tiles_n = (g.n + BN - 1) / BN;
    const long long tiles = tiles_m * tiles_n;
    const int z = static_cast<int>(i / tiles);
    const long long tile = i - z * tiles;
    const TileCoord t = tile_coord(tile, tiles_m, tiles_n);
    const long long k_begin = z * g.k_chunk;
    return {t.m * BM, t.n * BN, k_begin, min(g.k, k_begin + g.k_chunk), tile, z};
}

template <int BN, int A_MAJOR, int B_MAJOR>
__device__ __forceinline__ void load_stage(unsigned stage, unsigned full, const CUtensorMap* a, const CUtensorMap* b, const Work& w,
                                           int k) {
    const int m0 = static_cast<int>(w.m0), n0 = static_cast<int>(w.n0);
    mbarrier_expect(full, Ring<BN>::A_BYTES + (B_MAJOR == K_MAJOR ? BN * BK * 2 : Ring<BN>::B_BYTES));
    if constexpr (A_MAJOR == K_MAJOR)
        tma_load_2d(stage, a, full, k, m0);
    else
        for (int i = 0; i < BM / BOX; ++i) tma_load_2d(stage + i * BOX * BK * 2, a, full, m0 + i * BOX, k);
    const unsigned sb = stage + Ring<BN>::A_BYTES;
    if constexpr (B_MAJOR == K_MAJOR)
        tma_load_2d(sb, b, full, k, n0);
    else
        for (int i = 0; i < Ring<BN>::B_BYTES / (BOX * BK * 2); ++i) tma_load_2d(sb + i * BOX * BK * 2, b, full, n0 + i * BOX, k);
}

// Issues the four k16 products of one stage for this consumer's 64 rows.
template <int BN, typename T, int A_MAJOR, int B_MAJOR>
__device__ __forceinline__ void multiply_stage(float (&acc)[BN / 2], unsigned stage, int consumer) {
    constexpr unsigned BLOCK = BOX * BK * 2;
    const unsigned sa = stage + consumer * BLOCK;   // 64 rows of K-major, or 64 columns of MN-major: the same bytes
    const unsigned sb = stage + Ring<BN>::A_BYTES;
#pragma unroll
    for (int k = 0; k < BK / 16; ++k) {
        const unsigned ka = A_MAJOR == K_MAJOR ? k * 32 : k * 2048;
        const unsigned kb = B_MAJOR == K_MAJOR ? k * 32 : k * 2048;
        Wgmma<BN, T, A_MAJOR, B_MAJOR>::run(acc, wgmma_descriptor(sa + ka, BLOCK, 1024), wgmma_descriptor(sb + kb, BLOCK, 1024));
    }
}

template <typename O, int BN>
__device__ __forceinline__ void store_tile(const float (&acc)[BN / 2], O* c, const float* bias, const GemmArgs& g, const Work& w,
                                           int consumer) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const long long row = w.m0 + consumer * 64 + warp * 16 + lane / 4;
    const bool accumulate = g.accumulate || w.z > 0;
    const float* first = g.has_bias && w.z == 0 ? bias : nullptr;
#pragma unroll
    for (int j = 0; j < BN / 8; ++j) {
        const long long col = w.n0 + j * 8 + lane % 4 * 2;
        store_pair(c, first, g, accumulate, row, col, acc[j * 4], acc[j * 4 + 1]);
        store_pair(c, first, g, accumulate, row + 8, col, acc[j * 4 + 2], acc[j * 4 + 3]);
    }
}

// As wait_turn and pass_turn, for one warpgroup: each consumer has its own turn.
__device__ __forceinline__ void warpgroup_sync(int id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }
__device__ __forceinline__ void warpgroup_wait_turn(const int* turn, int z, int id) {
    if (threadIdx.x % 128 == 0) {
        int now;
        do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
        while (now != z);
    }
    warpgroup_sync(id);
}
__device__ __forceinline__ void warpgroup_pass_turn(int* turn, int z, int splits, int id) {
    warpgroup_sync(id);
    if (threadIdx.x % 128 == 0) {
        __threadfence();
        asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(turn), "r"(z + 1 == splits ? 0 : z + 1) : "memory");
    }
}

template <int BN, typename T, typename O, int A_MAJOR, int B_MAJOR>
__device__ __forceinline__ void consume(unsigned ring, unsigned full, unsigned empty, const float* bias, O* c, int* turns,
                                        const GemmArgs& g, long long items, int consumer) {
    Cursor at;
    for (long long i = blockIdx.x; i < items; i += gridDim.x) {
        const Work w = work_item<BN>(i, g);
        float acc[BN / 2];
#pragma unroll
        for (int j = 0; j < BN / 2; ++j) acc[j] = 0.f;
        int last = -1;
        for (long long k = w.k_begin; k < w.k_end; k += BK) {
            mbarrier_wait(full + at.stage * 8, at.phase);
            wgmma_fence();
            multiply_stage<BN, T, A_MAJOR, B_MAJOR>(acc, ring + at.stage * Ring<BN>::STAGE, consumer);
            wgmma_commit();
            wgmma_wait<1>();
            if (last >= 0 && threadIdx.x % 128 == 0) mbarrier_arrive(empty + last * 8);
            last = at.stage;
            at.advance<Ring<BN>::STAGES>();
        }
        wgmma_wait<0>();
        if (last >= 0 && threadIdx.x % 128 == 0) mbarrier_arrive(empty + last * 8);
        int* turn = turns + w.tile * 2 + consumer;
        if (g.splits > 1) warpgroup_wait_turn(turn, w.z, consumer + 1);
        store_tile<O, BN>(acc, c, bias, g, w, consumer);
        if (g.splits > 1) warpgroup_pass_turn(turn, w.z, g.splits, consumer + 1);
    }
}

// Dynamic shared memory: Ring<BN>::BYTES. Boxes of the maps: K-major [rows = BM or BN, 64], MN-major [64 k, 64].
template <int BN, typename T, typename O, int A_MAJOR, int B_MAJOR>
__global__ __launch_bounds__(THREADS, 1) void gemm_wgmma(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                                                         const float* __restrict__ bias, O* __restrict__ c,
                                                         int* __restrict__ turns, GemmArgs g) {
    extern __shared__ unsigned char raw[];
    __shared__ __align__(8) unsigned long long bars[2 * Ring<BN>::STAGES];
    constexpr int STAGES = Ring<BN>::STAGES;
    const unsigned ring = (shared_addr(raw) + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;
    const unsigned full = shared_addr(bars), empty = full + STAGES * 8;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) mbarrier_init(full + s * 8, 1), mbarrier_init(empty + s * 8, 2);
        mbarrier_fence_init();
        tma_prefetch_descriptor(&a);
        tma_prefetch_descriptor(&b);
    }
    __syncthreads();
    const long long tiles = (g.m + BM - 1) / BM * ((g.n + BN - 1) / BN);
    const long long items = tiles * g.splits;
    const int group = threadIdx.x / 128;
    if (group == 0) {
        registers_shrink<40>();
        if (threadIdx.x == 0) {
            Cursor at;
            for (long long i = blockIdx.x; i < items; i += gridDim.x) {
                const Work w = work_item<BN>(i, g);
                for (long long k = w.k_begin; k < w.k_end; k += BK) {
                    mbarrier_wait(empty + at.stage * 8, at.phase ^ 1);
                    load_stage<BN, A_MAJOR, B_MAJOR>(ring + at.stage * Ring<BN>::STAGE, full + at.stage * 8, &a, &b, w,
                                                     static_cast<int>(k));
                    at.advance<STAGES>();
                }
            }
        }
    } else {
        registers_grow<232>();
        consume<BN, T, O, A_MAJOR, B_MAJOR>(ring, full, empty, bias, c, turns, g, items, group - 1);
    }
}

template __global__ void gemm_wgmma<96, __nv_bfloat16, __nv_bfloat16, K_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __nv_bfloat16*, int*, GemmArgs);
template __global__ void gemm_wgmma<96, __nv_bfloat16, __nv_bfloat16, K_MAJOR, K_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __nv_bfloat16*, int*, GemmArgs);
template __global__ void gemm_wgmma<96, __nv_bfloat16, __nv_bfloat16, MN_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __nv_bfloat16*, int*, GemmArgs);
template __global__ void gemm_wgmma<96, __nv_bfloat16, float, K_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<96, __nv_bfloat16, float, K_MAJOR, K_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<96, __nv_bfloat16, float, MN_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<96, __half, __half, K_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __half*, int*, GemmArgs);
template __global__ void gemm_wgmma<96, __half, __half, K_MAJOR, K_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __half*, int*, GemmArgs);
template __global__ void gemm_wgmma<96, __half, __half, MN_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __half*, int*, GemmArgs);
template __global__ void gemm_wgmma<96, __half, float, K_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<96, __half, float, K_MAJOR, K_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<96, __half, float, MN_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<128, __nv_bfloat16, __nv_bfloat16, K_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __nv_bfloat16*, int*, GemmArgs);
template __global__ void gemm_wgmma<128, __nv_bfloat16, __nv_bfloat16, K_MAJOR, K_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __nv_bfloat16*, int*, GemmArgs);
template __global__ void gemm_wgmma<128, __nv_bfloat16, __nv_bfloat16, MN_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __nv_bfloat16*, int*, GemmArgs);
template __global__ void gemm_wgmma<128, __nv_bfloat16, float, K_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<128, __nv_bfloat16, float, K_MAJOR, K_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<128, __nv_bfloat16, float, MN_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<128, __half, __half, K_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __half*, int*, GemmArgs);
template __global__ void gemm_wgmma<128, __half, __half, K_MAJOR, K_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __half*, int*, GemmArgs);
template __global__ void gemm_wgmma<128, __half, __half, MN_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __half*, int*, GemmArgs);
template __global__ void gemm_wgmma<128, __half, float, K_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<128, __half, float, K_MAJOR, K_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<128, __half, float, MN_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<256, __nv_bfloat16, __nv_bfloat16, K_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __nv_bfloat16*, int*, GemmArgs);
template __global__ void gemm_wgmma<256, __nv_bfloat16, __nv_bfloat16, K_MAJOR, K_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __nv_bfloat16*, int*, GemmArgs);
template __global__ void gemm_wgmma<256, __nv_bfloat16, __nv_bfloat16, MN_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __nv_bfloat16*, int*, GemmArgs);
template __global__ void gemm_wgmma<256, __nv_bfloat16, float, K_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<256, __nv_bfloat16, float, K_MAJOR, K_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<256, __nv_bfloat16, float, MN_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<256, __half, __half, K_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __half*, int*, GemmArgs);
template __global__ void gemm_wgmma<256, __half, __half, K_MAJOR, K_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __half*, int*, GemmArgs);
template __global__ void gemm_wgmma<256, __half, __half, MN_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, __half*, int*, GemmArgs);
template __global__ void gemm_wgmma<256, __half, float, K_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<256, __half, float, K_MAJOR, K_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
template __global__ void gemm_wgmma<256, __half, float, MN_MAJOR, MN_MAJOR>(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, const float*, float*, int*, GemmArgs);
