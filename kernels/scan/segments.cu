// What each segment of a long sequence does to the state that enters it: the first half of the scan by segments.
//
// @variant f32 -DSTORAGE=float
// @variant bf16 -DSTORAGE=__nv_bfloat16
// @variant f16 -DSTORAGE=__half
#include "scan_pipeline.cuh"

// `ends` [batch, segments, channels, states]: the state after all but the last segment, from zero; `sums`
// [batch, segments, channels]: their sums of Δ, -∞ where a document begins.
template <typename T, int LANES, int SPL>
__global__ __launch_bounds__(FORWARD_THREADS, 3) void scan_segment_ends(
    const T* __restrict__ u, const T* __restrict__ raw, const T* __restrict__ b, const float* __restrict__ neg_a,
    const float* __restrict__ dt_bias, const unsigned char* __restrict__ reset, float* __restrict__ ends, float* __restrict__ sums, ScanArgs g) {
    using Tile = ForwardTile<LANES, SPL>;
    extern __shared__ __align__(128) unsigned char memory[];
    const unsigned shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
    const unsigned blocks = static_cast<unsigned>((g.channels + Tile::CB - 1) / Tile::CB), piece = blockIdx.x / blocks;
    const unsigned segments = segments_of(g.seq_len), batch = piece / (segments - 1), segment = piece - batch * (segments - 1);
    const long long c0 = static_cast<long long>(blockIdx.x - piece * blocks) * Tile::CB;
    const long long token0 = batch * g.seq_len + static_cast<long long>(segment) * SCAN_SEGMENT;
    if (threadIdx.x >= SCAN_THREADS) {
        const Producer<T> k = make_producer<Tile>(shared, u, raw, u, b, b, static_cast<T*>(nullptr), nullptr, dt_bias, reset, token0, c0, g);
        if (aligned4(u, g.ld_u) && aligned4(raw, g.ld_raw) && g.channels % 4 == 0) produce<true, true, Tile>(shared, k, g, SCAN_SEGMENT);
        else produce<false, true, Tile>(shared, k, g, SCAN_SEGMENT);
        return;
    }
    const int part = lane_part<LANES>(threadIdx.x), row = lane_row<LANES>(threadIdx.x), first = part * SPL;
    const long long channel = c0 + row;
    const bool live = channel < g.channels;
    float a2[SPL], h[SPL] = {};
#pragma unroll
    for (int i = 0; i < SPL; ++i) a2[i] = live && first + i < g.states ? neg_a[channel * g.states + first + i] * LOG2E : 0.f;
    const float sum = consume<true, Tile>(shared, a2, h, row, part, SCAN_SEGMENT, reset != nullptr, nullptr, g);
    if (!live) return;
    const long long at = (batch * segments + segment) * g.channels + channel;
    if (part == 0) sums[at] = sum;
#pragma unroll
    for (int i = 0; i < SPL; ++i)
        if (first + i < g.states) ends[at * g.states + first + i] = h[i];
}

#define ENDS(LANES, SPL)                                                                                                   \
    template __global__ void scan_segment_ends<STORAGE, LANES, SPL>(const STORAGE*, const STORAGE*, const STORAGE*, const float*,   \
                                                                    const float*, const unsigned char*, float*, float*, ScanArgs);
ENDS(1, 4)
ENDS(2, 4)
ENDS(4, 4)
ENDS(8, 4)
ENDS(16, 4)
ENDS(32, 4)
ENDS(32, 8)
