//! What the optimizer knows of a model: its tensors, and the spans of the control clip.

use crate::error::Result;
use mamba_model::{ModelConfig, ParamTable};
use mamba_optim::{ControlSpans, ParamGroups, ParamSpan, StridedSpan};

/// The tensors with their decay groups.
pub(super) fn param_groups(table: &ParamTable, reference_no_decay: bool) -> Result<ParamGroups> {
    let spans = table.iter().map(|p| ParamSpan::new(p.name.clone(), p.span.range(), p.decay)).collect();
    let mut groups = ParamGroups::new(table.arena_len(), spans)?;
    groups.set_reference_no_decay(reference_no_decay);
    Ok(groups)
}

/// The gradients of step size and decay: x_proj's dt columns, dt_proj weight and bias, A_log of every layer.
pub(super) fn control_spans(table: &ParamTable, model: &ModelConfig) -> Result<ControlSpans> {
    let c = &model.backbone;
    let spans = table.layers.iter().flat_map(|layer| {
        let dt = 0..c.dt_rank();
        [
            StridedSpan::columns(layer.x_proj.offset, c.d_inner(), c.x_proj_cols(), dt),
            layer.dt_proj.range().into(),
            layer.dt_bias.range().into(),
            layer.a_log.range().into(),
        ]
    });
    Ok(ControlSpans::new(table.arena_len(), spans.collect())?)
}
