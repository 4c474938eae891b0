// Tensor-core products with mma.sync: bf16 and f16 operands, or f32 operands rounded once to TF32.
//
// @variant tf32_f32_nn -DOPERAND_T=float -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant tf32_f32_nt -DOPERAND_T=float -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant tf32_f32_tn -DOPERAND_T=float -DRESULT=float -DMAJOR_A=MN_MAJOR -DMAJOR_B=MN_MAJOR
// @variant bf16_bf16_nn -DOPERAND_T=__nv_bfloat16 -DRESULT=__nv_bfloat16 -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant bf16_f32_nn -DOPERAND_T=__nv_bfloat16 -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant bf16_bf16_nt -DOPERAND_T=__nv_bfloat16 -DRESULT=__nv_bfloat16 -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant bf16_f32_nt -DOPERAND_T=__nv_bfloat16 -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant bf16_f32_tn -DOPERAND_T=__nv_bfloat16 -DRESULT=float -DMAJOR_A=MN_MAJOR -DMAJOR_B=MN_MAJOR
// @variant f16_f16_nn -DOPERAND_T=__half -DRESULT=__half -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant f16_f32_nn -DOPERAND_T=__half -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=MN_MAJOR
// @variant f16_f16_nt -DOPERAND_T=__half -DRESULT=__half -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant f16_f32_nt -DOPERAND_T=__half -DRESULT=float -DMAJOR_A=K_MAJOR -DMAJOR_B=K_MAJOR
// @variant f16_f32_tn -DOPERAND_T=__half -DRESULT=float -DMAJOR_A=MN_MAJOR -DMAJOR_B=MN_MAJOR
#include "gemm_common.cuh"

constexpr int BM = 128, BN = 128, THREADS = 256, STAGES = 3;
constexpr int WARP_M = 64, WARP_N = 32;   // 2 × 4 warps
constexpr int MT = WARP_M / 16, NT = WARP_N / 8;

template <typename T> struct Tile {
    static constexpr int BK = 32;
    static constexpr int PAD = 16 / sizeof(T);   // one 16-byte chunk a row keeps ldmatrix free of bank conflicts
    static constexpr int K_PITCH = BK + PAD;
    // 32-bit operands are read word by word: 8 words of padding spread four k rows over the banks.
    static constexpr int MN_PITCH = BM + (sizeof(T) == 4 ? 8 : PAD);
};

// Elements of one operand's tile.
template <typename T, int MAJOR> constexpr int OPERAND = MAJOR == K_MAJOR ? BM * Tile<T>::K_PITCH : Tile<T>::BK * Tile<T>::MN_PITCH;

template <typename T, int MAJOR, bool ALIGNED>
__device__ __forceinline__ void load_operand(T* smem, const T* src, long long ld, long long mn0, long long mn, long long k0,
                                             long long k_end) {
    if constexpr (MAJOR == K_MAJOR)
        load_tile<BM, Tile<T>::BK, Tile<T>::K_PITCH, THREADS, ALIGNED>(smem, src, ld, mn0, mn, k0, k_end);
    else
        load_tile<Tile<T>::BK, BM, Tile<T>::MN_PITCH, THREADS, ALIGNED>(smem, src, ld, k0, k_end, mn0, mn);
}

template <bool TRANS> __device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* p) {
    if constexpr (TRANS)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(smem_addr(p)));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(smem_addr(p)));
}

// Rounds to TF32 to nearest, ties away; NaN stays NaN and infinity stays infinity.
__device__ __forceinline__ unsigned tf32(float x) {
    unsigned r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, __nv_bfloat16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, __half) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, float) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The 16 × KSTEP fragment of A at row `m`, column `k` of the tile (KSTEP: 16 for half types, 8 for TF32).
template <typename T, int MAJOR> __device__ __forceinline__ void frag_a(unsigned (&r)[4], const T* s, int m, int k, int lane) {
    if constexpr (sizeof(T) == 4) {
        const int row = m + lane / 4, col = k + lane % 4;
        auto at = [&](int i, int j) { return tf32(MAJOR == K_MAJOR ? s[i * Tile<T>::K_PITCH + j] : s[j * Tile<T>::MN_PITCH + i]); };
        r[0] = at(row, col), r[1] = at(row + 8, col), r[2] = at(row, col + 4), r[3] = at(row + 8, col + 4);
    } else if constexpr (MAJOR == K_MAJOR) {
        ldmatrix_x4<false>(r, s + (m + lane % 16) * Tile<T>::K_PITCH + k + (lane / 16) * 8);
    } else {
        ldmatrix_x4<true>(r, s + (k + (lane / 16) * 8 + lane % 8) * Tile<T>::MN_PITCH + m + (lane / 8 % 2) * 8);
    }
}

// Two neighbouring KSTEP × 8 fragments of B at column `n`: {b0, b1} of the first, {b0, b1} of the second.
template <typename T, int MAJOR> __device__ __forceinline__ void frag_b(unsigned (&r)[4], const T* s, int n, int k, int lane) {
    if constexpr (sizeof(T) == 4) {
        const int row = n + lane / 4, col = k + lane % 4;
        auto at = [&](int i, int j) { return tf32(MAJOR == K_MAJOR ? s[i * Tile<T>::K_PITCH + j] : s[j * Tile<T>::MN_PITCH + i]); };
        r[0] = at(row, col), r[1] = at(row, col + 4), r[2] = at(row + 8, col), r[3] = at(row + 8, col + 4);
    } else if constexpr (MAJOR == K_MAJOR) {
        ldmatrix_x4<false>(r, s + (n + (lane / 16) * 8 + lane % 8) * Tile<T>::K_PITCH + k + (lane / 8 % 2) * 8);
    } else {
        ldmatrix_x4<true>(r, s + (k + lane % 16) * Tile<T>::MN_PITCH + n + (lane / 16) * 8);
    }
}

template <typename T, int A_MAJOR, int B_MAJOR>
__device__ __forceinline__ void multiply(const T* a, const T* b, int wm, int wn, int lane, float (&acc)[MT][NT][4]) {
    constexpr int KSTEP = sizeof(T) == 4 ? 8 : 16;
#pragma unroll
    for (int k = 0; k < Tile<T>::BK; k += KSTEP) {
        unsigned fa[MT][4], fb[NT / 2][4];
#pragma unroll
        for (int i = 0; i < MT; ++i) frag_a<T, A_MAJOR>(fa[i], a, wm + i * 16, k, lane);
#pragma unroll
        for (int j = 0; j < NT / 2; ++j) frag_b<T, B_MAJOR>(fb[j], b, wn + j * 16, k, lane);
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int j = 0; j < NT; ++j) mma(acc[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1], T());
    }
}

// Dynamic shared memory: STAGES · (OPERAND<T, A_MAJOR> + OPERAND<T, B_MAJOR>) elements of T.
template <typename T, typename O, int A_MAJOR, int B_MAJOR, bool ALIGNED>
__global__ __launch_bounds__(THREADS, sizeof(T) == 4 ? 1 : 2) void gemm_mma(const T* __restrict__ a, const T* __restrict__ b,
                                                                           const float* __restrict__ bias, O* __restrict__ c,
                                                                           int* __restrict__ turns, GemmArgs g) {
    extern __shared__ __align__(128) unsigned char raw[];
    constexpr int A_LEN = OPERAND<T, A_MAJOR>, STAGE = A_LEN + OPERAND<T, B_MAJOR>;
    T* const smem = reinterpret_cast<T*>(raw);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int wm = (warp / 4) * WARP_M, wn = (warp % 4) * WARP_N;
    const Segment<BM, BN> s(blockIdx.x, g);
    const long long steps = (s.k_end - s.k_begin + Tile<T>::BK - 1) / Tile<T>::BK;
    float acc[MT][NT][4] = {};
    auto load = [&](long long step) {
        T* stage = smem + (step % STAGES) * STAGE;
        const long long k0 = s.k_begin + step * Tile<T>::BK;
        load_operand<T, A_MAJOR, ALIGNED>(stage, a, g.lda, s.m0, g.m, k0, s.k_end);
        load_operand<T, B_MAJOR, ALIGNED>(stage + A_LEN, b, g.ldb, s.n0, g.n, k0, s.k_end);
    };
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < steps) load(i);
        cp_async_commit();
    }
    for (long long step = 0; step < steps; ++step) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) load(step + STAGES - 1);
        cp_async_commit();
        const T* stage = smem + (step % STAGES) * STAGE;
        multiply<T, A_MAJOR, B_MAJOR>(stage, stage + A_LEN, wm, wn, lane, acc);
    }
    if (g.splits > 1 && threadIdx.x == 0) wait_turn(turns + s.tile, s.order);
    __syncthreads();   // the turn has come, and the stages are free again
    const bool accumulate = g.accumulate || s.order > 0;
    const float* first_bias = g.has_bias && s.order == 0 ? bias : nullptr;
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int j = 0; j < NT; ++j) {
            const long long row = s.m0 + wm + i * 16 + lane / 4, col = s.n0 + wn + j * 8 + (lane % 4) * 2;
            store_pair(c, first_bias, g, accumulate, row, col, acc[i][j][0], acc[i][j][1]);
            store_pair(c, first_bias, g, accumulate, row + 8, col, acc[i][j][2], acc[i][j][3]);
        }
    if (g.splits > 1) {
        __syncthreads();
        if (threadIdx.x == 0) pass_turn(turns + s.tile, s.order, g.splits);
    }
}

template __global__ void gemm_mma<OPERAND_T, RESULT, MAJOR_A, MAJOR_B, true>(const OPERAND_T*, const OPERAND_T*, const float*, RESULT*,
                                                                            int*, GemmArgs);
template __global__ void gemm_mma<OPERAND_T, RESULT, MAJOR_A, MAJOR_B, false>(const OPERAND_T*, const OPERAND_T*, const float*, RESULT*,
                                                                             int*, GemmArgs);
