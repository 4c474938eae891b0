//! What must hold bit for bit in the CPU engine however a sequence is cut, packed, batched, or whatever ran before.
#![allow(clippy::unwrap_used, clippy::panic)]

use mamba_model::cpu::{CpuModel, CpuOptions};
use mamba_model::rng::SplitMix64;
use mamba_model::{MambaConfig, MambaWeights, ModelConfig, ModelInput, RecurrentState};
use mamba_tests::random::{draws, random_state, shaken};

/// Rows of a batch, each `[seq_len, width]`.
type Rows = Vec<Vec<f32>>;

/// Whole sequences that are fed window by window.
struct Sequences<'a> {
    weights: &'a MambaWeights,
    input: Rows,
    reset: Option<Vec<Vec<u8>>>,
    start: RecurrentState,
}

impl Sequences<'_> {
    /// Outputs and state after windows of these lengths.
    fn run(&self, lengths: &[usize]) -> (Rows, RecurrentState) {
        let c = &self.weights.config().backbone;
        let (mut state, mut at) = (self.start.clone(), 0);
        let mut out = vec![Vec::new(); self.input.len()];
        for &len in lengths {
            let cut = |row: &Vec<f32>| row[at * c.input_width()..][..len * c.input_width()].to_vec();
            let window: Vec<f32> = self.input.iter().flat_map(cut).collect();
            let reset: Option<Vec<u8>> = self
                .reset
                .as_ref()
                .map(|rows| rows.iter().flat_map(|row| row[at..][..len].to_vec()).collect());
            let mut model = engine(self.weights, self.input.len(), len);
            let input = ModelInput::Dense(&window);
            model.forward(self.weights.arena(), input, reset.as_deref(), &mut state).unwrap();
            for (out, row) in out.iter_mut().zip(model.temporal().chunks(len * c.d_model)) {
                out.extend_from_slice(row);
            }
            at += len;
        }
        (out, state)
    }
}

fn engine(weights: &MambaWeights, batch: usize, seq_len: usize) -> CpuModel {
    let options = CpuOptions { threads: Some(2), ..CpuOptions::default() };
    let mut model = CpuModel::new(weights.config(), batch, seq_len, &options).unwrap();
    model.refresh(weights.arena()).unwrap();
    model
}

fn same_for_all_cuts(config: MambaConfig, batch: usize, packed: bool, cuts: &[&[usize]]) {
    let mut rng = SplitMix64::new(config.d_conv as u64, "windows");
    let model = ModelConfig::backbone(config);
    let weights = shaken(&model, &mut rng);
    let total: usize = cuts[0].iter().sum();
    let width = model.backbone.input_width();
    let mut mask = |_| (0..total).map(|_| u8::from(rng.next_u64().is_multiple_of(4))).collect();
    let reset = packed.then(|| (0..batch).map(&mut mask).collect());
    let input = (0..batch).map(|_| draws(&mut rng, total * width)).collect();
    let start = random_state(&model.backbone, batch, &mut rng);
    let sequences = Sequences { weights: &weights, input, reset, start };
    let whole = sequences.run(&[total]);
    for cut in cuts {
        assert!(sequences.run(cut) == whole, "{cut:?}, packed {packed}, {:?}", model.backbone);
    }
}

#[test]
fn windows_with_carry_are_one_sequence() {
    for d_conv in 1..=8 {
        for (batch, packed) in [(1, false), (3, false), (2, true)] {
            let config =
                MambaConfig { d_conv, d_state: [16, 3, 17, 1][d_conv % 4], ..MambaConfig::new(9, 2) };
            let cuts: [&[usize]; 5] = [&[1, 1, 2, 3, 5], &[1; 12], &[7, 5], &[2, 10], &[11, 1]];
            same_for_all_cuts(config.with_input_dim(4), batch, packed, &cuts);
        }
    }
}

/// Cuts inside and at the ends of the engine's chunks of 16 and tiles of 64 tokens; three groups of channels, the last one
/// partial.
#[test]
fn long_windows_with_carry_are_one_sequence() {
    let cuts: [&[usize]; 4] = [&[64, 64, 129], &[63, 1, 65, 128], &[16, 240, 1], &[15, 17, 33, 192]];
    for packed in [false, true] {
        same_for_all_cuts(MambaConfig { d_state: 5, ..MambaConfig::new(69, 2) }, 2, packed, &cuts);
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbours() {
    let config = ModelConfig::backbone(MambaConfig::new(24, 2).with_input_dim(5));
    let mut rng = SplitMix64::new(1, "rows");
    let weights = shaken(&config, &mut rng);
    let input: Rows = (0..64).map(|_| draws(&mut rng, 30)).collect();
    let run = |input: Rows| {
        let start = RecurrentState::zeros(&config.backbone, input.len());
        Sequences { weights: &weights, input, reset: None, start }.run(&[6]).0
    };
    let all = run(input.clone());
    for row in [0, 1, 31, 63] {
        assert_eq!(run(vec![input[row].clone()])[0], all[row], "row {row}");
    }
}

/// Outputs and input gradient of one row.
fn row_of(weights: &MambaWeights, input: &[f32], d: &[f32], reset: Option<&[u8]>) -> (Vec<f32>, Vec<f32>) {
    let c = &weights.config().backbone;
    let mut model = engine(weights, 1, input.len() / c.input_width());
    let mut state = RecurrentState::zeros(c, 1);
    model.forward(weights.arena(), ModelInput::Dense(input), reset, &mut state).unwrap();
    let (mut grads, mut d_input) = (vec![0.0; weights.arena().len()], vec![0.0; input.len()]);
    let temporal = model.temporal().to_vec();
    model.backward(weights.arena(), d, &mut grads, Some(&mut d_input)).unwrap();
    (temporal, d_input)
}

#[test]
fn packed_documents_are_as_if_alone() {
    let config = ModelConfig::backbone(MambaConfig { d_state: 6, ..MambaConfig::new(11, 2) });
    let mut rng = SplitMix64::new(2, "documents");
    let weights = shaken(&config, &mut rng);
    let lengths = [1, 5, 2, 40, 17, 64, 3];
    let total: usize = lengths.iter().sum();
    let (input, d) = (draws(&mut rng, total * 11), draws(&mut rng, total * 11));
    let mut reset = vec![0; total];
    let (mut temporal, mut d_input, mut at) = (Vec::new(), Vec::new(), 0);
    for len in lengths {
        reset[at] = 1;
        let part = at * 11..(at + len) * 11;
        let (t, d) = row_of(&weights, &input[part.clone()], &d[part], None);
        temporal.extend(t);
        d_input.extend(d);
        at += len;
    }
    assert!(row_of(&weights, &input, &d, Some(&reset)) == (temporal, d_input));
}

/// A window full of NaN leaves nothing behind in buffers, padded lanes and partial chunks.
#[test]
fn a_poisoned_window_does_not_reach_the_next() {
    for (d_model, seq_len, batch) in [(5, 7, 1), (35, 65, 2), (17, 17, 3)] {
        let config = ModelConfig::backbone(MambaConfig { d_state: 3, ..MambaConfig::new(d_model, 2) });
        let mut rng = SplitMix64::new(3, "poison");
        let weights = shaken(&config, &mut rng);
        let (input, d) =
            (draws(&mut rng, batch * seq_len * d_model), draws(&mut rng, batch * seq_len * d_model));
        let run = |model: &mut CpuModel, input: &[f32]| {
            let mut state = RecurrentState::zeros(&config.backbone, batch);
            model.forward(weights.arena(), ModelInput::Dense(input), None, &mut state).unwrap();
            let (mut grads, mut d_input) = (vec![0.0; weights.arena().len()], vec![0.0; input.len()]);
            let temporal = model.temporal().to_vec();
            model.backward(weights.arena(), &d, &mut grads, Some(&mut d_input)).unwrap();
            (temporal, state, grads, d_input)
        };
        let mut used = engine(&weights, batch, seq_len);
        let poisoned = run(&mut used, &vec![f32::NAN; input.len()]);
        assert!(poisoned.0.iter().chain(&poisoned.3).all(|v| v.is_nan()));
        assert!(run(&mut used, &input) == run(&mut engine(&weights, batch, seq_len), &input), "{d_model}");
    }
}
