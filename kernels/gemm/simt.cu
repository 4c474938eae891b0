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
__device__ __forceinline__ void multiply_segment(const float* a, const float* b, const GemmArgs& g, const Segment<BM, BN>& s,
                                                 float (*as)[BK][PITCH], float (*bs)[BK][PITCH], float (&acc)[8][8]) {
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    Source<A_MAJOR, ALIGNED> from_a(a, g.lda, s.m0, g.m, s.k_begin);
    Source<B_MAJOR, ALIGNED> from_b(b, g.ldb, s.n0, g.n, s.k_begin);
    long long k_left = s.k_end - s.k_begin;
    int tile_k = static_cast<int>(min(k_left, static_cast<long long>(BK)));
    from_a.put(as[0], from_a.fetch(tile_k));
    from_b.put(bs[0], from_b.fetch(tile_k));
    __syncthreads();
    for (int buf = 0; k_left > 0; buf ^= 1) {
        k_left -= BK;
        float4 next_a, next_b;
        if (k_left > 0) {
            tile_k = static_cast<int>(min(k_left, static_cast<long long>(BK)));
            next_a = from_a.fetch(tile_k);
            next_b = from_b.fetch(tile_k);
        }
        multiply(as[buf], bs[buf], ty, tx, acc);
        if (k_left > 0) {
            from_a.put(as[buf ^ 1], next_a);
            from_b.put(bs[buf ^ 1], next_b);
            __syncthreads();
        }
    }
}

template <int A_MAJOR, int B_MAJOR, bool ALIGNED>
__global__ __launch_bounds__(THREADS, 2) void gemm_simt(const float* __restrict__ a, const float* __restrict__ b,
                                                        const float* __restrict__ bias, float* __restrict__ c, int* __restrict__ turns, GemmArgs g) {
    __shared__ __align__(16) float as[2][BK][PITCH], bs[2][BK][PITCH];
    const Segment<BM, BN> s(blockIdx.x, g);
    float acc[8][8] = {};
    multiply_segment<A_MAJOR, B_MAJOR, ALIGNED>(a, b, g, s, as, bs, acc);
    if (g.splits > 1 && threadIdx.x == 0) wait_turn(turns + s.tile, s.order);
    __syncthreads();   // the turn has come, and the tiles in shared memory are free again
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    const bool accumulate = g.accumulate || s.order > 0;
    const float* first_bias = g.has_bias && s.order == 0 ? bias : nullptr;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const long long row = s.m0 + (i / 4) * 64 + ty * 4 + i % 4;
#pragma unroll
        for (int j = 0; j < 8; j += 2)
            store_pair(c, first_bias, g, accumulate, row, s.n0 + (j / 4) * 64 + tx * 4 + j % 4, acc[i][j], acc[i][j + 1]);
    }
    if (g.splits > 1) {
        __syncthreads();
        if (threadIdx.x == 0) pass_turn(turns + s.tile, s.order, g.splits);
    }
}

template __global__ void gemm_simt<K_MAJOR, MN_MAJOR, true>(const float*, const float*, const float*, float*, int*, GemmArgs);
template __global__ void gemm_simt<K_MAJOR, MN_MAJOR, false>(const float*, const float*, const float*, float*, int*, GemmArgs);
template __global__ void gemm_simt<K_MAJOR, K_MAJOR, true>(const float*, const float*, const float*, float*, int*, GemmArgs);
template __global__ void gemm_simt<K_MAJOR, K_MAJOR, false>(const float*, const float*, const float*, float*, int*, GemmArgs);
template __global__ void gemm_simt<MN_MAJOR, MN_MAJOR, true>(const float*, const float*, const float*, float*, int*, GemmArgs);
template __global__ void gemm_simt<MN_MAJOR, MN_MAJOR, false>(const float*, const float*, const float*, float*, int*, GemmArgs);
