// What every GEMM kernel shares: problem description, tile order, epilogue.
//
// C[m, n] = op(A)[m, k] · op(B)[k, n]  (+ bias[n]) (+ C), accumulated in f32 in ascending k.
// A is "K-major" as [m, k] rows and "MN-major" as [k, m] rows; B is "MN-major" as [k, n] rows and "K-major" as [n, k] rows.
// The launch geometry depends on the shape only, so the bits do too.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int K_MAJOR = 0;
constexpr int MN_MAJOR = 1;

// Mirrors `GemmArgs` in mamba-kernels.
struct GemmArgs {
    long long m, n, k;
    long long lda, ldb, ldc;     // elements between rows of the stored matrices
    long long k_chunk;           // k elements a split takes; split z covers [z·k_chunk, (z+1)·k_chunk)
    int splits;                  // above 1 only for an f32 C
    int accumulate;              // 1: add to C
    int has_bias;                // 1: add bias[n]
    int reserved;
};
static_assert(sizeof(GemmArgs) == 72, "keep in step with GemmArgs in gemm/mod.rs");

// Splits of one tile add to C in split order: split z waits until `*turn` is z. Blocks of lower z start earlier, so the
// wait is short and cannot lock up. The last split leaves 0 for the next launch. Called by all threads of the block.
__device__ __forceinline__ void wait_turn(const int* turn, int z) {
    if (threadIdx.x == 0) {
        int now;
        do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
        while (now != z);
    }
    __syncthreads();
}
__device__ __forceinline__ void pass_turn(int* turn, int z, int splits) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(turn), "r"(z + 1 == splits ? 0 : z + 1) : "memory");
    }
}

struct TileCoord {
    long long m, n;
};

// Walks eight tile rows together, so that the blocks running at one time share both operands in the L2.
__device__ __forceinline__ TileCoord tile_coord(long long tile, long long tiles_m, long long tiles_n) {
    constexpr long long GROUP = 8;
    const long long per_group = GROUP * tiles_n;
    const long long group = tile / per_group;
    const long long first = group * GROUP;
    const long long rows = min(GROUP, tiles_m - first);
    const long long in_group = tile - group * per_group;
    return {first + in_group % rows, in_group / rows};
}

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_f32(__half x) { return __half2float(x); }

template <typename O> __device__ __forceinline__ O from_f32(float x);
template <> __device__ __forceinline__ float from_f32<float>(float x) { return x; }
template <> __device__ __forceinline__ __nv_bfloat16 from_f32<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ __forceinline__ __half from_f32<__half>(float x) { return __float2half_rn(x); }

template <typename O> struct alignas(2 * sizeof(O)) Pair {
    O x, y;
};

// Stores C[row, col] and C[row, col + 1] where they exist. `bias` may be null.
template <typename O>
__device__ __forceinline__ void store_pair(O* __restrict__ c, const float* __restrict__ bias, const GemmArgs& g, bool accumulate,
                                           long long row, long long col, float x, float y) {
    if (row >= g.m || col >= g.n) return;
    const bool two = col + 1 < g.n;
    if (bias) {
        x += bias[col];
        if (two) y += bias[col + 1];
    }
    O* p = c + row * g.ldc + col;
    if (two && (g.ldc & 1) == 0 && (reinterpret_cast<unsigned long long>(c) & (2 * sizeof(O) - 1)) == 0) {
        Pair<O>* q = reinterpret_cast<Pair<O>*>(p);
        if (accumulate) {
            const Pair<O> old = *q;
            x += to_f32(old.x);
            y += to_f32(old.y);
        }
        *q = {from_f32<O>(x), from_f32<O>(y)};
        return;
    }
    p[0] = from_f32<O>(accumulate ? x + to_f32(p[0]) : x);
    if (two) p[1] = from_f32<O>(accumulate ? y + to_f32(p[1]) : y);
}

__device__ __forceinline__ unsigned smem_addr(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// 16 bytes to shared memory, the last ones zero-filled: `bytes` of them come from `src`.
__device__ __forceinline__ void cp_async16(unsigned dst, const void* src, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes));
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;"); }
template <int PENDING> __device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING)); }

// Loads a tile of ROWS × COLS elements, rows contiguous in memory, into shared memory with row pitch PITCH.
// Elements outside [0, rows) × [0, cols) become zero. ALIGNED: base and ld are multiples of 16 bytes.
template <int ROWS, int COLS, int PITCH, int THREADS, bool ALIGNED, typename T>
__device__ __forceinline__ void load_tile(T* smem, const T* __restrict__ src, long long ld, long long row0, long long rows,
                                          long long col0, long long cols) {
    constexpr int VEC = 16 / sizeof(T);
    constexpr int CHUNKS = ROWS * (COLS / VEC);
    static_assert(COLS % VEC == 0 && PITCH % VEC == 0, "16-byte chunks");
#pragma unroll
    for (int base = 0; base < CHUNKS; base += THREADS) {
        const int i = base + threadIdx.x;
        if (CHUNKS % THREADS != 0 && i >= CHUNKS) break;
        const int r = i / (COLS / VEC);
        const int c = (i % (COLS / VEC)) * VEC;
        T* dst = smem + r * PITCH + c;
        const long long row = row0 + r, col = col0 + c;
        const long long left = row < rows ? cols - col : 0;
        const int valid = left <= 0 ? 0 : (left < VEC ? static_cast<int>(left) : VEC);
        const T* p = valid > 0 ? src + row * ld + col : src;
        if constexpr (ALIGNED) {
            cp_async16(smem_addr(dst), p, valid * static_cast<int>(sizeof(T)));
        } else {
#pragma unroll
            for (int e = 0; e < VEC; ++e) dst[e] = e < valid ? p[e] : from_f32<T>(0.f);
        }
    }
}
