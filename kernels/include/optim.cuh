// What the kernels of the optimizer's tail share. Both structs mirror those of the same name in mamba-kernels' optim module.
#pragma once

// Rewritten by the host before each step.
struct TailInputs {
    double beta1_exact, beta2_exact, clip_max, control_clip_max, skip_above, skip_z_score, deviation_floor, grad_factor, growth_factor,
        backoff_factor;
    float lr, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, min_scale, max_scale;
    unsigned growth_interval, min_norms, flags;
};
static_assert(sizeof(TailInputs) == 128, "as in mamba-kernels");

// Lives on the device from step to step.
struct TailState {
    unsigned long long step, windows, spikes, outliers, non_finite, overflows;
    double grad_norm, control_norm, outlier_above;
    float scale, used_scale, inv_scale, clip, bc1, bc2;
    unsigned growth_tracker, consecutive, outcome, applied, norms, oldest_norm;
};
static_assert(sizeof(TailState) == 120, "as in mamba-kernels");

constexpr unsigned GUARD = 1, SCALED = 2;
enum Outcome : unsigned { NONE, APPLIED, SPIKE, NON_FINITE, OVERFLOWED, OVERFLOWED_AT_FLOOR, OUTLIER };

// Elements of a gradient block, the unit of the norm.
constexpr int GRAD_BLOCK = 1 << 14;

// Turns the arena into the gradient: the factor over the loss scale, rounded once.
__device__ __forceinline__ float inverse_scale(const TailInputs* in, const TailState* state) {
    return static_cast<float>(__ddiv_rn(in->grad_factor, static_cast<double>(state->scale)));
}

// All exponent bits set: Inf or NaN.
__device__ __forceinline__ bool non_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) == 0x7f800000u; }
__device__ __forceinline__ bool is_finite(double x) { return (__double_as_longlong(x) & 0x7ff0000000000000ll) != 0x7ff0000000000000ll; }

// Factor of a clip: max / (norm + 1e-6) where that is below 1, else, and for a norm that is not finite, exactly 1.
__device__ __forceinline__ float clip_factor(double norm, double max) {
    const double raw = __ddiv_rn(max, norm + 1e-6);
    return is_finite(norm) && raw < 1.0 ? static_cast<float>(raw) : 1.f;
}
