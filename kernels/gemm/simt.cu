// Exact f32 products on the CUDA cores: one fused multiply-add per product, ascending k.
#include "gemm_common.cuh"

constexpr int BM = 128, BN = 128, BK = 8, THREADS = 256;
constexpr int PITCH = BM + 4;

// This thread's four elements of a [BK, 128] (MN-major) or [128, BK] (K-major) tile, walking along k.
template <int MAJOR, bool ALIGNED> struct Source {
    const float* p;
    long long step;   // to the next tile
    int row, col;     // inside the tile as it is stored
    int mn_left;      // columns (MN-major) or rows (K-major) left from here on

    __device__ __forceinline__ Source(const float* src, long long ld, long long mn0, long long mn, long long k0) {
        const int t = threadIdx.x;
        row = MAJOR == MN_MAJOR ? t / 32 : t / 2, col = MAJOR == MN_MAJOR ? t % 32 * 4 : t % 2 * 4;
        mn_left = static_cast<int>(min(mn - mn0, 128ll)) - (MAJOR == MN_MAJOR ? col : row);
        p = src + (MAJOR == MN_MAJOR ? (k0 + row) * ld + mn0 + col : (mn0 + row) * ld + k0 + col);
        step = MAJOR == MN_MAJOR ? BK * ld : BK;
    }

    __device__ __forceinline__ float4 fetch(int k_left) {
        const int left = MAJOR == MN_MAJOR ? (row < k_left ? mn_left : 0) : (mn_left > 0 ? k_left - col : 0);
        float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
        if (ALIGNED && left >= 4) {
            x = *reinterpret_cast<const float4*>(p);
        } else {
            if (left > 0) x.x = p[0];
            if (left > 1) x.y = p[1];
            if (left > 2) x.z = p[2];
            if (left > 3) x.w = p[3];
        }
        p += step;
        return x;
    }

    // Both majors end as [BK, 128] in shared memory.
    __device__ __forceinline__ void put(float (*tile)[PITCH], float4 x) const {
        if constexpr (MAJOR == MN_MAJOR)
            *reinterpret_cast<float4*>(&tile[row][col]) = x;
        else
            tile[col][row] = x.x, tile[col + 1][row] = x.y, tile[col + 2][row] = x.z, tile[col + 3][row] = x.w;
    }
};

__device__ __forceinline__ void multiply(const float (*a)[PITCH], const float (*b)[PITCH], int ty, int tx, float (&acc)[8][8]) {
#pragma unroll 2   // unrolled further, the loop spills
    for (int k = 0; k < BK; ++k) {
        float x[8], y[8];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            *reinterpret_cast<float4*>(&x[h * 4]) = *reinterpret_cast<const float4*>(&a[k][h * 64 + ty * 4]);
            *reinterpret_cast<float4*>(&y[h * 4]) = *reinterpret_cast<const float4*>(&b[k][h * 64 + tx * 4]);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
            for (int j = 0; j < 8; ++j) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);
    }
}

template <int A_MAJOR, int B_MAJOR, bool ALIGNED>
__global__ __launch_bounds__(THREADS, 2) void gemm_simt(const float* __restrict__ a, const float* __restrict__ b,
                                                        const float* __restrict__ bias, float* __restrict__ c, int* __restrict__ turns, GemmArgs g) {
    __shared__ __align__(16) float as[2][BK][PITCH], bs[2][BK][PITCH];
    const TileCoord t = tile_coord(blockIdx.x, (g.m + BM - 1) / BM, (g.n + BN - 1) / BN);
    const long long m0 = t.m * BM, n0 = t.n * BN;
    const long long k_begin = blockIdx.z * g.k_chunk;
    const long long k_end = min(g.k, k_begin + g.k_chunk);
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    float acc[8][8] = {};

    Source<A_MAJOR, ALIGNED> from_a(a, g.lda, m0, g.m, k_begin);
    Source<B_MAJOR, ALIGNED> from_b(b, g.ldb, n0, g.n, k_begin);
    long long k_left = k_end - k_begin;
    int tile_k = static_cast<int>(min(k_left, static_cast<long long>(BK)));
    from_a.put(as[0], from_a.fetch(tile_k));
    from_b.put(bs[0], from_b.fetch(tile_k));
    __syncthreads();
    for (int buf = 0; k_left > 0; buf ^= 1) {
        k_left -= BK;
        float4 sa, sb;
        if (k_left > 0) {
            tile_k = static_cast<int>(min(k_left, static_cast<long long>(BK)));
            sa = from_a.fetch(tile_k);
            sb = from_b.fetch(tile_k);
        }
        multiply(as[buf], bs[buf], ty, tx, acc);
        if (k_left > 0) {
            from_a.put(as[buf ^ 1], sa);
            from_b.put(bs[buf ^ 1], sb);
            __syncthreads();
        }
    }
    const int z = static_cast<int>(blockIdx.z);
    const bool accumulate = g.accumulate || z > 0;
    bias = g.has_bias && z == 0 ? bias : nullptr;
    if (g.splits > 1) wait_turn(turns + blockIdx.x, z);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const long long row = m0 + (i / 4) * 64 + ty * 4 + i % 4;
#pragma unroll
        for (int j = 0; j < 8; j += 2)
            store_pair(c, bias, g, accumulate, row, n0 + (j / 4) * 64 + tx * 4 + j % 4, acc[i][j], acc[i][j + 1]);
    }
    if (g.splits > 1) pass_turn(turns + blockIdx.x, z, g.splits);
}

template __global__ void gemm_simt<K_MAJOR, MN_MAJOR, true>(const float*, const float*, const float*, float*, int*, GemmArgs);
template __global__ void gemm_simt<K_MAJOR, MN_MAJOR, false>(const float*, const float*, const float*, float*, int*, GemmArgs);
template __global__ void gemm_simt<K_MAJOR, K_MAJOR, true>(const float*, const float*, const float*, float*, int*, GemmArgs);
template __global__ void gemm_simt<K_MAJOR, K_MAJOR, false>(const float*, const float*, const float*, float*, int*, GemmArgs);
template __global__ void gemm_simt<MN_MAJOR, MN_MAJOR, true>(const float*, const float*, const float*, float*, int*, GemmArgs);
template __global__ void gemm_simt<MN_MAJOR, MN_MAJOR, false>(const float*, const float*, const float*, float*, int*, GemmArgs);
