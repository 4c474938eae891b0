/// Everything that can go wrong in this crate. A call that returns one of these has changed no weight, no
/// moment, no step count and no scale.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OptimError {
    /// A setting lies outside its range.
    #[error("`{name}` is {value}; it must be {expected}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// The value given (counts are printed as numbers too).
        value: f64,
        /// What would be accepted.
        expected: &'static str,
    },
    /// A buffer of another length than the parameter groups were built for.
    #[error("`{name}` holds {got} elements, the arena has {expected}")]
    Length {
        /// The buffer.
        name: &'static str,
        /// Elements found.
        got: usize,
        /// Elements needed.
        expected: usize,
    },
    /// A span that is empty, reversed or reaches past the arena.
    #[error("span `{name}` covers {start}..{end}; it must be non-empty and inside 0..{len}")]
    SpanRange {
        /// Name of the span.
        name: String,
        /// First element.
        start: usize,
        /// One past the last element (saturated where it overflows).
        end: usize,
        /// Elements in the arena.
        len: usize,
    },
    /// Two spans share an element, which would update or count it twice.
    #[error("spans `{first}` and `{second}` overlap at element {at}; each element belongs to one span")]
    SpanOverlap {
        /// The span that starts first.
        first: String,
        /// The span that starts inside it.
        second: String,
        /// First shared element.
        at: usize,
    },
    /// A control clip was asked for, but no control spans were given.
    #[error("a control clip at {max_norm} needs control spans; give them, or leave the control clip off")]
    NoControlSpans {
        /// The threshold asked for.
        max_norm: f64,
    },
    /// The norm of the gradient is NaN or infinite, so there is no clip coefficient.
    #[error("the gradient norm is {norm}; discard the gradient or find the tensor with `first_non_finite`")]
    NonFiniteNorm {
        /// The norm.
        norm: f64,
    },
    /// The gradients overflowed at the smallest allowed loss scale.
    #[error(
        "gradients overflow at loss scale {scale}, and the floor is {floor}: the gradients themselves are \
         not finite; lower the learning rate, clip, or train in a wider type"
    )]
    ScaleAtFloor {
        /// The current scale.
        scale: f32,
        /// The smallest allowed scale.
        floor: f32,
    },
    /// A saved scaler state was loaded into a scaler of the other kind.
    #[error("the saved loss scaler is {saved}, this one is {current}; both must be enabled or disabled")]
    ScalerKind {
        /// `"enabled"` or `"disabled"`.
        saved: &'static str,
        /// `"enabled"` or `"disabled"`.
        current: &'static str,
    },
    /// The step scalars do not belong to this state: they must be rebuilt before every step.
    #[error("step scalars carry `{name}` = {got}, the state asks for {expected}; rebuild them each step")]
    StaleScalars {
        /// The field that disagrees.
        name: &'static str,
        /// Value in the scalars.
        got: f64,
        /// Value the state gives.
        expected: f64,
    },
    /// Too many steps in a row were skipped.
    #[error(
        "{consecutive} steps in a row were skipped, the limit is {limit}: the run no longer learns; go back \
         to a checkpoint or lower the learning rate"
    )]
    TooManySkips {
        /// Skips in a row, this one included.
        consecutive: u32,
        /// The limit.
        limit: u32,
    },
    /// A saved state does not hold together.
    #[error("saved optimizer state: `{field}` is {value}; it must be {expected}")]
    State {
        /// The field.
        field: &'static str,
        /// The value found.
        value: f64,
        /// What would be accepted.
        expected: &'static str,
    },
}

/// `Err` unless `ok`; the usual shape of a range check.
pub(crate) fn ensure(
    ok: bool,
    name: &'static str,
    value: f64,
    expected: &'static str,
) -> Result<(), OptimError> {
    if ok { Ok(()) } else { Err(OptimError::Setting { name, value, expected }) }
}

/// `Err` unless a buffer has the arena's length.
pub(crate) fn ensure_len(name: &'static str, got: usize, expected: usize) -> Result<(), OptimError> {
    if got == expected { Ok(()) } else { Err(OptimError::Length { name, got, expected }) }
}
