use std::time::{Duration, Instant};

/// Part of a step, as the engine runs it: the loops of one parallel region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Phase {
    /// Weights into packed panels, A from A_log.
    Refresh,
    /// Embedding or input projection, and the input gradient.
    Input,
    /// out_proj and residual of a block, norm and in_proj of the next.
    Projections,
    /// Convolution, x_proj, dt_proj.
    Conv,
    /// Selective scan with gate.
    Scan,
    /// Head and loss, forward and backward.
    Loss,
    /// Gradient through in_proj and norm of a block, and through out_proj of the one before.
    ProjectionsBackward,
    /// Scan backward.
    ScanBackward,
    /// Gradient through dt_proj, x_proj and the convolution.
    ConvBackward,
    /// Weight gradients of the projections.
    WeightGradients,
}

/// All phases, with a name for tables.
pub const PHASES: [(Phase, &str); 10] = [
    (Phase::Refresh, "refresh"),
    (Phase::Input, "input"),
    (Phase::Projections, "norm, in_proj, out_proj"),
    (Phase::Conv, "conv, x_proj, dt_proj"),
    (Phase::Scan, "scan"),
    (Phase::Loss, "head and loss"),
    (Phase::ProjectionsBackward, "norm, in_proj, out_proj backward"),
    (Phase::ScanBackward, "scan backward"),
    (Phase::ConvBackward, "conv, x_proj, dt_proj backward"),
    (Phase::WeightGradients, "weight gradients"),
];

/// Wall time spent in each phase since the last reset.
#[derive(Debug, Clone, Copy, Default)]
pub struct PhaseTimes {
    spent: [Duration; PHASES.len()],
}

impl PhaseTimes {
    /// Time spent in a phase.
    pub fn get(&self, phase: Phase) -> Duration {
        self.spent[phase as usize]
    }

    /// Time spent in all phases.
    pub fn total(&self) -> Duration {
        self.spent.iter().sum()
    }

    pub(super) fn time<R>(&mut self, phase: Phase, op: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let out = op();
        self.spent[phase as usize] += start.elapsed();
        out
    }
}
