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
    long long k_chunk;           // k elements a split takes, a multiple of the kernel's k step
    int splits;                  // above 1 only for an f32 C
    int accumulate;              // 1: add to C
    int has_bias;                // 1: add bias[n]
    int reserved;
};
static_assert(sizeof(GemmArgs) == 72, "keep in step with GemmArgs in gemm/mod.rs");

struct TileCoord {
    int m, n;
};

// Walks eight tile rows together, so that the blocks running at one time share both operands in the L2.
__device__ __forceinline__ TileCoord tile_coord(int tile, int tiles_m, int tiles_n) {
    constexpr int GROUP = 8;
    const int per_group = GROUP * tiles_n;
    const int group = tile / per_group;
    const int first = group * GROUP;
    const int rows = min(GROUP, tiles_m - first);
    const int in_group = tile - group * per_group;
    return {first + in_group % rows, in_group / rows};
}

// One split of one tile. All tiles of a split come before the next split: the blocks running at one time read the same
// part of k, which they share in the L2. The host keeps tiles · splits below 2^31.
template <int TILE_M, int TILE_N> struct Segment {
    int tile, order;
    long long m0, n0, k_begin, k_end;

    __device__ __forceinline__ static int count(const GemmArgs& g) {
        return static_cast<int>((g.m + TILE_M - 1) / TILE_M) * static_cast<int>((g.n + TILE_N - 1) / TILE_N) * g.splits;
    }
    __device__ __forceinline__ Segment(int index, const GemmArgs& g) {
        const int tiles_m = static_cast<int>((g.m + TILE_M - 1) / TILE_M), tiles_n = static_cast<int>((g.n + TILE_N - 1) / TILE_N);
        order = index / (tiles_m * tiles_n);
        tile = index - order * (tiles_m * tiles_n);
        const TileCoord t = tile_coord(tile, tiles_m, tiles_n);
        m0 = static_cast<long long>(t.m) * TILE_M;
        n0 = static_cast<long long>(t.n) * TILE_N;
        k_begin = order * g.k_chunk;
        k_end = min(g.k, k_begin + g.k_chunk);
    }
};

// The splits of a tile add to C in ascending order. Blocks of an earlier split start earlier, so the wait is short and
// cannot lock up. The last split leaves 0 for the next launch.
__device__ __forceinline__ void wait_turn(const int* turn, int order) {
    int now;
    do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
    while (now != order);
}
__device__ __forceinline__ void pass_turn(int* turn, int order, int splits) {
    __threadfence();
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(turn), "r"(order + 1 == splits ? 0 : order + 1) : "memory");
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
