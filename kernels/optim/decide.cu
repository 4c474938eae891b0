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

__device__ __forceinline__ Outcome judge(TailState& s, const TailInputs& in, bool bad) {
    if ((in.flags & SCALED) && bad) return back_off(s, in) ? OVERFLOWED : OVERFLOWED_AT_FLOOR;
    if (in.flags & SCALED) grow(s, in);
    // Not "above": a NaN is skipped too.
    if ((in.flags & GUARD) && !(s.grad_norm <= in.skip_above)) return is_finite(s.grad_norm) ? SPIKE : NON_FINITE;
    return APPLIED;
}

__device__ __forceinline__ void count(TailState& s, Outcome outcome) {
    if (outcome == APPLIED) s.consecutive = 0;
    if (outcome == SPIKE) ++s.spikes, ++s.consecutive;
    if (outcome == NON_FINITE) ++s.non_finite, ++s.consecutive;
    if (outcome == OVERFLOWED || outcome == OVERFLOWED_AT_FLOOR) ++s.overflows;
    ++s.windows;
}

// One block. `loss_scale` follows the state's scale, for kernels that read nothing else.
__global__ __launch_bounds__(THREADS) void decide(const double* __restrict__ partial, const unsigned* __restrict__ bad,
                                                  const double* __restrict__ control_norm, const TailInputs* __restrict__ inputs,
                                                  TailState* __restrict__ state, float* __restrict__ loss_scale, long long blocks) {
    const double squares = block_fold<THREADS>(partial, blocks);
    unsigned seen = 0;
#pragma unroll 8
    for (long long i = threadIdx.x; i < blocks; i += THREADS) seen |= bad[i];
    const bool any_bad = __syncthreads_or(seen != 0);
    if (threadIdx.x != 0) return;
    const TailInputs in = *inputs;
    TailState s = *state;
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
    }
    count(s, outcome);
    *state = s;
    *loss_scale = s.scale;
}
