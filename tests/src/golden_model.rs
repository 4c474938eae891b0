//! Golden backbones in this workspace's layout.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::golden::Case;
use crate::tolerance::Checks;
use mamba_model::{MambaConfig, MambaWeights, ModelConfig, ParamTable};

/// The golden backbones, below `golden/backbone`.
pub const CASES: [&str; 5] = ["backbone_01", "backbone_02", "backbone_03", "backbone_04", "backbone_05"];

/// A golden parameter's name without its layer.
pub fn tensor_kind(golden: &str) -> &str {
    golden.rsplit_once('.').map_or(golden, |(_, kind)| kind)
}

/// Name of a golden parameter in this workspace; panics at an unknown one.
pub fn own_name(golden: &str) -> String {
    let (layer, tensor) = match golden.rsplit_once('.') {
        Some((layer, tensor)) => (format!("{layer}."), tensor),
        None => (String::new(), golden),
    };
    let tensor = match tensor {
        "input_proj_w" => "input_proj.weight",
        "input_proj_b" => "input_proj.bias",
        "norm_weight" => "norm",
        "in_proj_w" => "in_proj",
        "conv1d_weight" => "conv1d.weight",
        "conv1d_bias" => "conv1d.bias",
        "x_proj_w" => "x_proj",
        "dt_proj_w" => "dt_proj.weight",
        "dt_proj_b" => "dt_proj.bias",
        "a_log" => "A_log",
        "d_param" => "D",
        "out_proj_w" => "out_proj",
        "norm_f_weight" => "norm_f",
        other => panic!("golden parameter `{other}`"),
    };
    layer + tensor
}

/// Sizes of a golden backbone's windows.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Sequences.
    pub batch: usize,
    /// Steps.
    pub seq_len: usize,
    /// Width of the input.
    pub input_dim: usize,
    /// Width of the residual stream.
    pub d_model: usize,
}

impl Sizes {
    /// Elements of one window's input.
    pub fn input_len(&self) -> usize {
        self.batch * self.seq_len * self.input_dim
    }

    /// Elements of one window's output.
    pub fn temporal_len(&self) -> usize {
        self.batch * self.seq_len * self.d_model
    }
}

/// Weights and sizes of a golden backbone; panics where the case is damaged.
pub fn weights_of(case: &Case) -> (MambaWeights, Sizes) {
    let c = &case.config;
    let size = |name: &str| c[name].as_u64().unwrap() as usize;
    let mut model = MambaConfig::new(size("d_model"), size("n_layers"));
    model.d_state = size("d_state");
    model.d_conv = size("d_conv");
    model.expand = size("expand");
    model.rms_norm_eps = c["rms_norm_eps"].as_f64().unwrap();
    model.input_dim = c["input_projection"].as_bool().unwrap().then(|| size("input_dim"));
    let mut weights = MambaWeights::zeros(&ModelConfig::backbone(model)).unwrap();
    for name in case.names().filter_map(|n| n.strip_prefix("param/")) {
        weights.set(&own_name(name), &case.f32(&format!("param/{name}"))).unwrap();
    }
    let sizes = Sizes {
        batch: size("batch"),
        seq_len: size("seq_len"),
        input_dim: size("input_dim"),
        d_model: size("d_model"),
    };
    (weights, sizes)
}

/// Window `index` of a golden backbone, input and upstream gradient.
pub fn window<'a, T>(all: (&'a [T], &'a [T]), sizes: &Sizes, index: usize) -> (&'a [T], &'a [T]) {
    let (input, temporal) = (sizes.input_len(), sizes.temporal_len());
    (&all.0[index * input..][..input], &all.1[index * temporal..][..temporal])
}

/// What a window gives.
#[derive(Debug)]
pub struct Outcome<'a, T> {
    /// As the golden data name it.
    pub temporal: &'a [T],
    /// As the golden data name it.
    pub conv: &'a [T],
    /// As the golden data name it.
    pub ssm: &'a [T],
    /// As the golden data name it.
    pub d_input: &'a [T],
    /// As the golden data name it.
    pub grads: &'a [T],
}

impl<T: Copy + Into<f64>> Outcome<'_, T> {
    /// Compares with window `index`; quantities are named below `family`.
    pub fn check(&self, checks: &mut Checks, family: &str, case: &Case, table: &ParamTable, index: usize) {
        let pairs = [
            ("temporal", self.temporal),
            ("conv_state_out", self.conv),
            ("ssm_state_out", self.ssm),
            ("d_input", self.d_input),
        ];
        for (name, got) in pairs {
            case.check(checks, &format!("{family}/{name}"), &format!("tbptt/{index}/{name}"), got);
        }
        let mut compared = 0;
        for golden in case.names().filter_map(|n| n.strip_prefix(&format!("tbptt/{index}/grad/"))) {
            let span = table.get(&own_name(golden)).unwrap().span;
            let quantity = format!("{family}/grad/{}", tensor_kind(golden));
            case.check(checks, &quantity, &format!("tbptt/{index}/grad/{golden}"), span.of(self.grads));
            compared += 1;
        }
        // The gradients of one window are left out where the file would be large.
        let left_out = case.name.ends_with("backbone_04") && index == 1;
        let tensors = case.names().filter(|n| n.starts_with("param/")).count();
        assert_eq!(compared, if left_out { 0 } else { tensors }, "{} window {index}", case.name);
    }
}
