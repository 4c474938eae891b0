// Embedding lookup and its gradient.
//
// The gradient row of a token id is the sum over its occurrences in token order. Occurrences are first sorted by id
// (stable, integer work only), then fixed runs of 32 sorted positions are summed side by side; ids that span several runs
// are folded in run order. No float atomics: the same ids give the same bits.
#include "storage.cuh"
#include <cstdint>

constexpr int THREADS = 256;
constexpr int RUN = 32;
// Tokens of a block of the look-up.
constexpr int TOKENS = 4;
// Earlier tokens that a block of the ranking looks at.
constexpr int WINDOW = 1024;
// Loads that a thread of a sum keeps in flight.
constexpr int BATCH = 8;

template <typename W, bool VECTOR>
__device__ __forceinline__ void look_up(const W* __restrict__ table, const unsigned* __restrict__ ids, float* __restrict__ out,
                                        long long first, int count, long long dim) {
    constexpr int V = VECTOR ? 4 : 1;
    for (long long i = threadIdx.x * V; i < dim; i += THREADS * V) {
        Pack<W, V> x[TOKENS];
#pragma unroll
        for (int k = 0; k < TOKENS; ++k)
            if (k < count) x[k] = load_pack<true, V>(table + static_cast<long long>(ids[first + k]) * dim + i, V);
#pragma unroll
        for (int k = 0; k < TOKENS; ++k) {
            if (k >= count) continue;
            Pack<float, V> y;
#pragma unroll
            for (int e = 0; e < V; ++e) y.v[e] = widen(x[k].v[e]);
            store_pack<true, V>(out + (first + k) * dim + i, y, V);
        }
    }
}

// out[t, :] = table[ids[t], :]; one block TOKENS tokens.
template <typename W>
__global__ __launch_bounds__(THREADS) void embedding_forward(const W* __restrict__ table, const unsigned* __restrict__ ids,
                                                             float* __restrict__ out, long long dim, int tokens) {
    const long long first = static_cast<long long>(blockIdx.x) * TOKENS;
    const int count = min(TOKENS, static_cast<int>(tokens - first));
    const bool vector = dim % 4 == 0 && reinterpret_cast<std::uintptr_t>(table) % (4 * sizeof(W)) == 0 &&
                        reinterpret_cast<std::uintptr_t>(out) % 16 == 0;
    if (vector)
        look_up<W, true>(table, ids, out, first, count, dim);
    else
        look_up<W, false>(table, ids, out, first, count, dim);
}

// counts[id] += occurrences (integers: order does not matter). `counts` starts at zero.
__global__ __launch_bounds__(THREADS) void embedding_count(const unsigned* __restrict__ ids, int* __restrict__ counts, int tokens) {
    const int t = blockIdx.x * THREADS + threadIdx.x;
    if (t < tokens) atomicAdd(&counts[ids[t]], 1);
}

// Exclusive prefix sum of `counts` over `rows` ids, in place; one block, tile by tile.
__global__ __launch_bounds__(1024) void embedding_starts(int* __restrict__ counts, int rows) {
    __shared__ int sums[32];
    int start = 0;
    int next = static_cast<int>(threadIdx.x) < rows ? counts[threadIdx.x] : 0;
    for (int first = 0; first < rows; first += 1024) {
        const int i = first + threadIdx.x, own = next;
        next = i + 1024 < rows ? counts[i + 1024] : 0;
        int sum = own;
#pragma unroll
        for (int d = 1; d < 32; d <<= 1) {
            const int left = __shfl_up_sync(~0u, sum, d);
            if (threadIdx.x % 32 >= d) sum += left;
        }
        __syncthreads();
        if (threadIdx.x % 32 == 31) sums[threadIdx.x / 32] = sum;
        __syncthreads();
        int before = 0, all = 0;
#pragma unroll
        for (int w = 0; w < 32; ++w) {
            before += w < threadIdx.x / 32 ? sums[w] : 0;
            all += sums[w];
        }
        if (i < rows) counts[i] = start + before + sum - own;
        start += all;
    }
}

// ranks[t] += how many of the WINDOW tokens from blockIdx.y · WINDOW on are earlier ones of the same id. `ranks` starts
// at zero. Every token is compared with all earlier ones; spread over the chip that is 10 µs at 16k tokens.
__global__ __launch_bounds__(THREADS) void embedding_ranks(const unsigned* __restrict__ ids, int* __restrict__ ranks, int tokens) {
    __shared__ uint4 seen[WINDOW / 4];
    const int t = blockIdx.x * THREADS + threadIdx.x, first = blockIdx.y * WINDOW;
    if (first >= (blockIdx.x + 1) * THREADS) return;
    unsigned* all = reinterpret_cast<unsigned*>(seen);
    for (int i = threadIdx.x; i < WINDOW; i += THREADS) all[i] = first + i < tokens ? ids[first + i] : ~0u;
    __syncthreads();
    if (t >= tokens) return;
    const unsigned id = ids[t];
    const int limit = min(WINDOW, t - first);
    int rank = 0, i = 0;
    for (; i + 16 <= limit; i += 16) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const uint4 other = seen[i / 4 + k];
            rank += (other.x == id) + (other.y == id) + (other.z == id) + (other.w == id);
        }
    }
    for (; i < limit; ++i) rank += all[i] == id;
    if (rank > 0) atomicAdd(&ranks[t], rank);
}

// Stable sort of the tokens by id.
__global__ __launch_bounds__(THREADS) void embedding_place(const unsigned* __restrict__ ids, const int* __restrict__ starts,
                                                           const int* __restrict__ ranks, int* __restrict__ sorted, int tokens) {
    const int t = blockIdx.x * THREADS + threadIdx.x;
    if (t < tokens) sorted[starts[ids[t]] + ranks[t]] = t;
}

// One block a run of 32 sorted positions, and THREADS columns. Ids that lie wholly inside the run are added to their
// gradient row; the sums of the run's first and last id go to edges[run, 0 or 1, :] where that id goes on beyond the run.
__global__ __launch_bounds__(THREADS) void embedding_runs(const unsigned* __restrict__ ids, const int* __restrict__ sorted,
                                                          const float* __restrict__ d_out, float* __restrict__ d_table,
                                                          float* __restrict__ edges, int tokens, long long dim) {
    // One position before the run and one behind it, so that ends show as changes; no id is ~0.
    __shared__ unsigned run_ids[RUN + 2];
    __shared__ int run_tokens[RUN];
    const int begin = blockIdx.x * RUN, count = min(RUN, tokens - begin);
    if (threadIdx.x < RUN + 2) {
        const int p = begin + static_cast<int>(threadIdx.x) - 1;
        const int t = p >= 0 && p < tokens ? sorted[p] : -1;
        run_ids[threadIdx.x] = t >= 0 ? ids[t] : ~0u;
        if (threadIdx.x > 0 && threadIdx.x <= RUN) run_tokens[threadIdx.x - 1] = t;
    }
    __syncthreads();
    const long long i = static_cast<long long>(blockIdx.y) * THREADS + threadIdx.x;
    if (i >= dim) return;
    const unsigned before = run_ids[0], behind = run_ids[count + 1];
    float sum = 0.f;
    for (int first = 0; first < count; first += BATCH) {
        float x[BATCH], old[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; ++k) {
            const int p = first + k;
            if (p >= count) break;
            x[k] = d_out[static_cast<long long>(run_tokens[p]) * dim + i];
            const unsigned id = run_ids[p + 1];
            const bool whole = id != run_ids[p + 2] && id != before;
            old[k] = whole ? d_table[static_cast<long long>(id) * dim + i] : 0.f;
        }
#pragma unroll
        for (int k = 0; k < BATCH; ++k) {
            const int p = first + k;
            if (p >= count) break;
            const unsigned id = run_ids[p + 1];
            sum += x[k];
            if (p + 1 < count && id == run_ids[p + 2]) continue;
            if (id == before || id == behind)
                edges[(2ll * blockIdx.x + (id == before ? 0 : 1)) * dim + i] = sum;
            else
                d_table[static_cast<long long>(id) * dim + i] = old[k] + sum;
            sum = 0.f;
        }
    }
}

// One block a run and THREADS columns: where the run's last id begins here and goes on, folds that id's edge sums in run
// order.
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
    const long long i = static_cast<long long>(blockIdx.y) * THREADS + threadIdx.x;
    if (i >= dim) return;
    float sum = edges[(2ll * blockIdx.x + 1) * dim + i];
#pragma unroll 8
    for (int r = 1; r < runs; ++r) sum += edges[2ll * (blockIdx.x + r) * dim + i];
    d_table[static_cast<long long>(id) * dim + i] += sum;
}

template __global__ void embedding_forward<float>(const float*, const unsigned*, float*, long long, int);
template __global__ void embedding_forward<__nv_bfloat16>(const __nv_bfloat16*, const unsigned*, float*, long long, int);
template __global__ void embedding_forward<__half>(const __half*, const unsigned*, float*, long long, int);
