// What becomes of a step: one block turns the sums over the gradient into the numbers that the update reads, and moves step
// count and loss scale. The rules are those of mamba-optim's tail, and so are the bits of all but the norm's last place.
#include "optim.cuh"
#include "reduce.cuh"

constexpr int THREADS = 1024;

// 1 / (1 − β^step): the power by squaring, in f64, rounded once to f32.
__device__ __forceinline__ float bias_correction(double beta, unsigned long long step) {
    double power = 1.0;
    for (; step > 0; step >>= 1) {
        if (step & 1) power = __dmul_rn(power, beta);
        beta = __dmul_rn(beta, beta);
    }
    return static_cast<float>(__ddiv_rn(1.0, 1.0 - power));
}

// Whether a loss scale and its inverse are finite and above 0.
__device__ __forceinline__ bool usable(float scale) {
    return !non_finite(scale) && scale > 0.f && !non_finite(static_cast<float>(__ddiv_rn(1.0, static_cast<double>(scale))));
}

// Whether there was a lower scale to go to.
__device__ __forceinline__ bool back_off(TailState& s, const TailInputs& in) {
    float lower = static_cast<float>(static_cast<double>(s.scale) * in.backoff_factor);
    if (lower < in.min_scale) lower = in.min_scale;
    if (!(lower < s.scale) || !usable(lower)) return false;
    s.scale = lower, s.growth_tracker = 0;
    return true;
}

__device__ __forceinline__ void grow(TailState& s, const TailInputs& in) {
    if (s.growth_tracker + 1 < in.growth_interval) {
        ++s.growth_tracker;
        return;
    }
    float higher = static_cast<float>(static_cast<double>(s.scale) * in.growth_factor);
    if (higher > in.max_scale) higher = in.max_scale;
    if (usable(higher)) s.scale = higher;
    s.growth_tracker = 0;
}

// The ring of the last applied steps' norms, as long as `capacity`.
struct NormRing {
    double* __restrict__ norms;
    unsigned capacity;
    // The i-th norm of the ring, the oldest first.
    __device__ __forceinline__ double& at(const TailState& s, unsigned i) const {
        const unsigned index = s.oldest_norm + i;
        return norms[index < capacity ? index : index - capacity];
    }
    __device__ __forceinline__ void push(TailState& s, double norm) const {
        if (s.norms < capacity) {
            at(s, s.norms++) = norm;
            return;
        }
        norms[s.oldest_norm] = norm;
        s.oldest_norm = s.oldest_norm + 1 < capacity ? s.oldest_norm + 1 : 0;
    }
};

// Norm above which a step is an outlier, +inf where there is none: mean plus z-score times the sample deviation. One warp;
// lane j adds norms j, j + 32, …, the lanes are folded by halves. Lane 0 gets the result.
__device__ __forceinline__ double outlier_threshold(const NormRing& ring, const TailState& s, const TailInputs& in) {
    const double infinity = __longlong_as_double(0x7ff0000000000000ll);
    if (!is_finite(in.skip_z_score) || s.norms < in.min_norms) return infinity;
    const double count = static_cast<double>(s.norms);
    double sum = 0;
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < s.norms; i += 32) sum = __dadd_rn(sum, ring.at(s, i));
    const double mean = __ddiv_rn(__shfl_sync(~0u, warp_fold(sum), 0), count);
    double squares = 0;
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < s.norms; i += 32) {
        const double off = __dsub_rn(ring.at(s, i), mean);
        squares = __dadd_rn(squares, __dmul_rn(off, off));
    }
    double deviation = __dsqrt_rn(__ddiv_rn(warp_fold(squares), count - 1.0));
    const double floor = __dmul_rn(in.deviation_floor, mean);
    if (deviation < floor) deviation = floor;
    const double threshold = __dadd_rn(mean, __dmul_rn(in.skip_z_score, deviation));
    return threshold > 0.0 ? threshold : infinity;
}

__device__ __forceinline__ Outcome judge(TailState& s, const TailInputs& in, bool bad) {
    if ((in.flags & SCALED) && bad) return back_off(s, in) ? OVERFLOWED : OVERFLOWED_AT_FLOOR;
    if (in.flags & SCALED) grow(s, in);
    // Not "above": a NaN is skipped too.
    if ((in.flags & GUARD) && !(s.grad_norm <= in.skip_above)) return is_finite(s.grad_norm) ? SPIKE : NON_FINITE;
    return s.grad_norm > s.outlier_above ? OUTLIER : APPLIED;
}

__device__ __forceinline__ void count(TailState& s, Outcome outcome) {
    if (outcome == APPLIED) s.consecutive = 0;
    if (outcome == SPIKE) ++s.spikes, ++s.consecutive;
    if (outcome == OUTLIER) ++s.outliers, ++s.consecutive;
    if (outcome == NON_FINITE) ++s.non_finite, ++s.consecutive;
    if (outcome == OVERFLOWED || outcome == OVERFLOWED_AT_FLOOR) ++s.overflows;
    ++s.windows;
}

// One block. `loss_scale` follows the state's scale, for kernels that read nothing else. `norms`: the ring.
__global__ __launch_bounds__(THREADS) void decide(const double* __restrict__ partial, const unsigned* __restrict__ bad,
                                                  const double* __restrict__ control_norm, const TailInputs* __restrict__ inputs,
                                                  TailState* __restrict__ state, double* __restrict__ norms,
                                                  float* __restrict__ loss_scale, long long blocks, unsigned capacity) {
    const double squares = block_fold<THREADS>(partial, blocks);
    unsigned seen = 0;
#pragma unroll 8
    for (long long i = threadIdx.x; i < blocks; i += THREADS) seen |= bad[i];
    const bool any_bad = __syncthreads_or(seen != 0);
    if (threadIdx.x >= 32) return;
    const TailInputs in = *inputs;
    TailState s = *state;
    const NormRing ring = {norms, capacity};
    s.outlier_above = outlier_threshold(ring, s, in);
    __syncwarp(); // every lane has read the state before lane 0 writes it
    if (threadIdx.x != 0) return;
    s.used_scale = s.scale;
    s.inv_scale = inverse_scale(inputs, state);
    s.grad_norm = __dsqrt_rn(squares);
    s.control_norm = control_norm ? *control_norm : __longlong_as_double(0x7ff8000000000000ll);
    s.clip = clip_factor(s.grad_norm, in.clip_max);
    const Outcome outcome = judge(s, in, any_bad);
    s.outcome = outcome;
    s.applied = outcome == APPLIED;
    if (outcome == APPLIED) {
        ++s.step;
        s.bc1 = bias_correction(in.beta1_exact, s.step);
        s.bc2 = bias_correction(in.beta2_exact, s.step);
        if (is_finite(s.grad_norm)) ring.push(s, s.grad_norm);
    }
    count(s, outcome);
    *state = s;
    *loss_scale = s.scale;
}
