// Selective scan, forward, with softplus, skip and gate.
//
// @variant f32 -DSTORAGE=float
// @variant bf16 -DSTORAGE=__nv_bfloat16
// @variant f16 -DSTORAGE=__half
#include "scan_pipeline.cuh"

// A segment of a sequence starts at its state in `h0` [batch, segments, channels, states] (null: zero). `reset` (null:
// none) marks first tokens of documents. `saved` (null: not saved) gets the state before every 16th step as
// [batch, ceil(seq_len / 16), channels, STATES].
template <typename T, int LANES, int SPL>
__global__ __launch_bounds__(FORWARD_THREADS, 3) void scan_forward(
    const T* __restrict__ u, const T* __restrict__ raw, const T* __restrict__ z, const T* __restrict__ b, const T* __restrict__ c,
    const float* __restrict__ neg_a, const float* __restrict__ d, const float* __restrict__ dt_bias,
    const unsigned char* __restrict__ reset, const float* __restrict__ h0, T* __restrict__ out, float* __restrict__ h_last,
    float* __restrict__ saved, ScanArgs g) {
    using Tile = ForwardTile<LANES, SPL>;
    extern __shared__ __align__(128) unsigned char memory[];
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
    const unsigned blocks = static_cast<unsigned>((g.channels + Tile::CB - 1) / Tile::CB), piece = blockIdx.x / blocks;
    const unsigned segments = segments_of(g.seq_len), batch = piece / segments, segment = piece - batch * segments;
    const long long c0 = static_cast<long long>(blockIdx.x - piece * blocks) * Tile::CB;
    const long long start = static_cast<long long>(segment) * SCAN_SEGMENT, token0 = batch * g.seq_len + start;
    const int steps = static_cast<int>(segment + 1 < segments ? SCAN_SEGMENT : g.seq_len - start);
    if (threadIdx.x >= SCAN_THREADS) {
        const Producer<T> k = make_producer<Tile>(shared, u, raw, z, b, c, out, d, dt_bias, reset, token0, c0, g);
        const bool vector = aligned4(u, g.ld_u) && aligned4(raw, g.ld_raw) && aligned4(z, g.ld_z) && aligned4(out, g.ld_out) && g.channels % 4 == 0;
        if (vector) produce<true, false, Tile>(shared, k, g, steps);
        else produce<false, false, Tile>(shared, k, g, steps);
        return;
    }
    const int part = lane_part<LANES>(threadIdx.x), row = lane_row<LANES>(threadIdx.x), first = part * SPL;
    const long long channel = c0 + row;
    const bool live = channel < g.channels;
    float a2[SPL], h[SPL];
#pragma unroll
    for (int i = 0; i < SPL; ++i) {
        const bool exists = live && first + i < g.states;
        a2[i] = exists ? neg_a[channel * g.states + first + i] * LOG2E : 0.f;
        h[i] = exists && h0 ? h0[(piece * g.channels + channel) * g.states + first + i] : 0.f;
    }
    const long long chunk = batch * ((g.seq_len + SCAN_CHUNK - 1) / SCAN_CHUNK) + start / SCAN_CHUNK;
    float* keep = saved && live ? saved + (chunk * g.channels + channel) * Tile::STATES + first : nullptr;
    float* last = live && h_last && first < g.states && segment + 1 == segments ? h_last + (batch * g.channels + channel) * g.states + first : nullptr;
    consume<false, Tile>(shared, a2, h, row, part, steps, reset != nullptr, keep, g);
    if (last) {
        int thread;   // read again: registers are short until here
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
        const int left = static_cast<int>(g.states) - lane_part<LANES>(thread) * SPL;
#pragma unroll
        for (int i = 0; i < SPL; ++i)
            if (i < left) last[i] = h[i];
    }
}

#define FORWARD(LANES, SPL)                                                                                                             \
    template __global__ void scan_forward<STORAGE, LANES, SPL>(                                                                         \
        const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const STORAGE*, const float*, const float*, const float*,       \
        const unsigned char*, const float*, STORAGE*, float*, float*, ScanArgs);
FORWARD(1, 4)
FORWARD(2, 4)
FORWARD(4, 4)
FORWARD(8, 4)
FORWARD(16, 4)
FORWARD(32, 4)
FORWARD(32, 8)
