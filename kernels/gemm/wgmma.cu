// bf16 and f16 products on Hopper: bulk tensor copies fill a ring of shared-memory stages, two warpgroups multiply.
//
// One producer warpgroup and two consumers, each with 64 of the tile's 128 rows. Blocks are persistent: they
// walk the list of (split, tile) with the grid as stride; a tile's bits do not depend on the number of blocks.
//
// @target 90a
// @variant bf16_bf16_nn_96 -DWIDTH=96 -DOPERAND=__nv_bfloat16 -DRESULT=__nv_bfloat16 -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant bf16_bf16_nn_128 -DWIDTH=128 -DOPERAND=__nv_bfloat16 -DRESULT=__nv_bfloat16 -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant bf16_bf16_nn_192 -DWIDTH=192 -DOPERAND=__nv_bfloat16 -DRESULT=__nv_bfloat16 -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant bf16_bf16_nn_256 -DWIDTH=256 -DOPERAND=__nv_bfloat16 -DRESULT=__nv_bfloat16 -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant bf16_f32_nn_96 -DWIDTH=96 -DOPERAND=__nv_bfloat16 -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant bf16_f32_nn_128 -DWIDTH=128 -DOPERAND=__nv_bfloat16 -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant bf16_f32_nn_192 -DWIDTH=192 -DOPERAND=__nv_bfloat16 -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant bf16_f32_nn_256 -DWIDTH=256 -DOPERAND=__nv_bfloat16 -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant bf16_bf16_nt_96 -DWIDTH=96 -DOPERAND=__nv_bfloat16 -DRESULT=__nv_bfloat16 -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant bf16_bf16_nt_128 -DWIDTH=128 -DOPERAND=__nv_bfloat16 -DRESULT=__nv_bfloat16 -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant bf16_bf16_nt_192 -DWIDTH=192 -DOPERAND=__nv_bfloat16 -DRESULT=__nv_bfloat16 -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant bf16_bf16_nt_256 -DWIDTH=256 -DOPERAND=__nv_bfloat16 -DRESULT=__nv_bfloat16 -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant bf16_f32_nt_96 -DWIDTH=96 -DOPERAND=__nv_bfloat16 -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant bf16_f32_nt_128 -DWIDTH=128 -DOPERAND=__nv_bfloat16 -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant bf16_f32_nt_192 -DWIDTH=192 -DOPERAND=__nv_bfloat16 -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant bf16_f32_nt_256 -DWIDTH=256 -DOPERAND=__nv_bfloat16 -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant bf16_f32_tn_96 -DWIDTH=96 -DOPERAND=__nv_bfloat16 -DRESULT=float -DMAJOR_A=MN_MAJOR -DMAJOR_B=MN_MAJOR
// @variant bf16_f32_tn_128 -DWIDTH=128 -DOPERAND=__nv_bfloat16 -DRESULT=float -DMAJOR_A=MN_MAJOR -DMAJOR_B=MN_MAJOR
// @variant bf16_f32_tn_192 -DWIDTH=192 -DOPERAND=__nv_bfloat16 -DRESULT=float -DMAJOR_A=MN_MAJOR -DMAJOR_B=MN_MAJOR
// @variant bf16_f32_tn_256 -DWIDTH=256 -DOPERAND=__nv_bfloat16 -DRESULT=float -DMAJOR_A=MN_MAJOR -DMAJOR_B=MN_MAJOR
// @variant f16_f16_nn_96 -DWIDTH=96 -DOPERAND=__half -DRESULT=__half -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant f16_f16_nn_128 -DWIDTH=128 -DOPERAND=__half -DRESULT=__half -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant f16_f16_nn_192 -DWIDTH=192 -DOPERAND=__half -DRESULT=__half -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant f16_f16_nn_256 -DWIDTH=256 -DOPERAND=__half -DRESULT=__half -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant f16_f32_nn_96 -DWIDTH=96 -DOPERAND=__half -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant f16_f32_nn_128 -DWIDTH=128 -DOPERAND=__half -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant f16_f32_nn_192 -DWIDTH=192 -DOPERAND=__half -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant f16_f32_nn_256 -DWIDTH=256 -DOPERAND=__half -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant f16_f16_nt_96 -DWIDTH=96 -DOPERAND=__half -DRESULT=__half -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant f16_f16_nt_128 -DWIDTH=128 -DOPERAND=__half -DRESULT=__half -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant f16_f16_nt_192 -DWIDTH=192 -DOPERAND=__half -DRESULT=__half -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant f16_f16_nt_256 -DWIDTH=256 -DOPERAND=__half -DRESULT=__half -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant f16_f32_nt_96 -DWIDTH=96 -DOPERAND=__half -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant f16_f32_nt_128 -DWIDTH=128 -DOPERAND=__half -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant f16_f32_nt_192 -DWIDTH=192 -DOPERAND=__half -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant f16_f32_nt_256 -DWIDTH=256 -DOPERAND=__half -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant f16_f32_tn_96 -DWIDTH=96 -DOPERAND=__half -DRESULT=float -DMAJOR_A=MN_MAJOR -DMAJOR_B=MN_MAJOR
// @variant f16_f32_tn_128 -DWIDTH=128 -DOPERAND=__half -DRESULT=float -DMAJOR_A=MN_MAJOR -DMAJOR_B=MN_MAJOR
// @variant f16_f32_tn_192 -DWIDTH=192 -DOPERAND=__half -DRESULT=float -DMAJOR_A=MN_MAJOR -DMAJOR_B=MN_MAJOR
// @variant f16_f32_tn_256 -DWIDTH=256 -DOPERAND=__half -DRESULT=float -DMAJOR_A=MN_MAJOR -DMAJOR_B=MN_MAJOR
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
    static constexpr int STAGES = BN > 192 ? 3 : BN > 128 ? 4 : 6;
    // Each consumer leaves 64 rows of finished results for the copy engine, 128-byte boxes side by side.
    static constexpr int OUT_BOXES = (BN + BOX - 1) / BOX;
    static constexpr int OUT_BYTES = OUT_BOXES * BOX * 128;
    static constexpr int BYTES = STAGES * STAGE + 2 * OUT_BYTES + STAGE_ALIGN;
};

struct Cursor {
    int stage = 0;
    unsigned phase = 0;
    template <int STAGES> __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

template <int BN, int A_MAJOR, int B_MAJOR>
__device__ __forceinline__ void load_stage(unsigned stage, unsigned full, const CUtensorMap* a, const CUtensorMap* b, const Segment<BM, BN>& s,
                                           int k) {
    const int m0 = static_cast<int>(s.m0), n0 = static_cast<int>(s.n0);
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

template <typename O> __device__ __forceinline__ unsigned pack(float x, float y) {
    const Pair<O> p = {from_f32<O>(x), from_f32<O>(y)};
    return *reinterpret_cast<const unsigned*>(&p);
}

// Address inside a box of 64 rows × 128 bytes with the copy engine's 128-byte swizzle; `chunk` counts 16 bytes.
__device__ __forceinline__ unsigned swizzled(int row, int chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }

// Columns [first, first + columns) of this consumer's accumulators to its staging boxes.
template <typename O, int BN, int FIRST, int COLUMNS>
__device__ __forceinline__ void stage_out(const float (&acc)[BN / 2], unsigned out, int lane, int warp) {
    if constexpr (sizeof(O) == 2) {
        const int row = warp * 16 + lane % 16;
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j += 2) {
            const float* d = &acc[(FIRST / 8 + j) * 4];
            const int chunk = j + lane / 16;
            stmatrix_x4(out + chunk / 8 * 8192 + swizzled(row, chunk % 8), pack<O>(d[0], d[1]), pack<O>(d[2], d[3]), pack<O>(d[4], d[5]),
                        pack<O>(d[6], d[7]));
        }
    } else {
        const int row = warp * 16 + lane / 4;
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j) {
            const float* d = &acc[(FIRST / 8 + j) * 4];
            const int chunk = j * 2 + lane % 4 / 2;
            const unsigned at = out + chunk / 8 * 8192 + swizzled(row, chunk % 8) + lane % 2 * 8;
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(d[0]), "f"(d[1]) : "memory");
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at + 8 * 128), "f"(d[2]), "f"(d[3]) : "memory");
        }
    }
}

// One pass of the epilogue: registers → staging → copy engine. The next tile's products overlap the copy.
template <typename O, int BN, int FIRST, int COLUMNS>
__device__ __forceinline__ void store_pass(const float (&acc)[BN / 2], unsigned out, const CUtensorMap* c, const GemmArgs& g,
                                           const Segment<BM, BN>& s, int consumer) {
    constexpr int BOX_COLS = 128 / sizeof(O);
    const bool leader = threadIdx.x % 128 == 0;
    if (leader) bulk_wait_read();
    warpgroup_sync(consumer + 1);
    stage_out<O, BN, FIRST, COLUMNS>(acc, out, threadIdx.x % 32, threadIdx.x / 32 % 4);
    fence_async_shared();
    warpgroup_sync(consumer + 1);
    if (leader) {
        for (int box = 0; box < (COLUMNS + BOX_COLS - 1) / BOX_COLS; ++box) {
            const int x = static_cast<int>(s.n0) + FIRST + box * BOX_COLS, y = static_cast<int>(s.m0) + consumer * 64;
            if (g.accumulate || s.order > 0)
                tma_add_2d(c, out + box * 8192, x, y);
            else
                tma_store_2d(c, out + box * 8192, x, y);
        }
        bulk_commit();
    }
}

template <typename O, int BN>
__device__ __forceinline__ void store_tile(float (&acc)[BN / 2], unsigned out, const CUtensorMap* c, const float* bias, int* turns,
                                           const GemmArgs& g, const Segment<BM, BN>& s, int consumer) {
    if (g.has_bias && s.order == 0) {
#pragma unroll
        for (int j = 0; j < BN / 8; ++j) {
            const long long col = s.n0 + j * 8 + threadIdx.x % 4 * 2;
            const float x = col < g.n ? bias[col] : 0.f, y = col + 1 < g.n ? bias[col + 1] : 0.f;
            acc[j * 4] += x, acc[j * 4 + 1] += y, acc[j * 4 + 2] += x, acc[j * 4 + 3] += y;
        }
    }
    int* turn = turns + s.tile * 2 + consumer;
    const bool leader = threadIdx.x % 128 == 0;
    if (g.splits > 1 && leader) {
        wait_turn(turn, s.order);
        fence_async();
    }
    // Columns the staging boxes hold at a time.
    constexpr int PASS = sizeof(O) == 2 ? BN : Ring<BN>::OUT_BOXES * 32;
    store_pass<O, BN, 0, PASS>(acc, out, c, g, s, consumer);
    if constexpr (PASS < BN) store_pass<O, BN, PASS, BN - PASS>(acc, out, c, g, s, consumer);
    if (g.splits > 1 && leader) {
        bulk_wait();
        fence_async();
        pass_turn(turn, s.order, g.splits);
    }
}

template <int BN, typename T, typename O, int A_MAJOR, int B_MAJOR>
__device__ __forceinline__ void consume(unsigned ring, unsigned full, unsigned empty, unsigned out, const CUtensorMap* c,
                                        const float* bias, int* turns, const GemmArgs& g, int consumer) {
    Cursor at;
    for (int index = blockIdx.x; index < Segment<BM, BN>::count(g); index += gridDim.x) {
        const Segment<BM, BN> s(index, g);
        float acc[BN / 2];
#pragma unroll
        for (int j = 0; j < BN / 2; ++j) acc[j] = 0.f;
        int last = -1;
        for (long long k = s.k_begin; k < s.k_end; k += BK) {
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
        store_tile<O, BN>(acc, out, c, bias, turns, g, s, consumer);
    }
    if (threadIdx.x % 128 == 0) bulk_wait();
}

// BN = 96 is for n <= 96 only: its last 16-bit box is 128 columns wide. Dynamic shared memory: Ring<BN>::BYTES. Boxes of the maps, all with the 128-byte swizzle: operands K-major
// [rows = BM or BN, 64] or MN-major [64 k, 64]; C [64 rows, 128 bytes].
template <int BN, typename T, typename O, int A_MAJOR, int B_MAJOR>
__global__ __launch_bounds__(THREADS, 1) void gemm_wgmma(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                                                         const __grid_constant__ CUtensorMap c, const float* __restrict__ bias,
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
    const int group = threadIdx.x / 128;
    if (group == 0) {
        registers_shrink<56>();
        if (threadIdx.x == 0) {
            Cursor at;
            for (int index = blockIdx.x; index < Segment<BM, BN>::count(g); index += gridDim.x) {
                const Segment<BM, BN> s(index, g);
                for (long long k = s.k_begin; k < s.k_end; k += BK) {
                    mbarrier_wait(empty + at.stage * 8, at.phase ^ 1);
                    load_stage<BN, A_MAJOR, B_MAJOR>(ring + at.stage * Ring<BN>::STAGE, full + at.stage * 8, &a, &b, s,
                                                     static_cast<int>(k));
                    at.advance<STAGES>();
                }
            }
        }
    } else {
        registers_grow<224>();
        const unsigned out = ring + STAGES * Ring<BN>::STAGE + (group - 1) * Ring<BN>::OUT_BYTES;
        consume<BN, T, O, A_MAJOR, B_MAJOR>(ring, full, empty, out, &c, bias, turns, g, group - 1);
    }
}

template __global__ void gemm_wgmma<WIDTH, OPERAND, RESULT, MAJOR_A, MAJOR_B>(const __grid_constant__ CUtensorMap,
                                                                              const __grid_constant__ CUtensorMap,
                                                                              const __grid_constant__ CUtensorMap, const float*, int*,
                                                                              GemmArgs);
