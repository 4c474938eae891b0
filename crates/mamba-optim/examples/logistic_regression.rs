//! Fits a multinomial logistic regression to Fisher's iris data: three species, four measurements, 15 parameters.
//!
//! Nothing here knows a sequence model: the arena holds a weight matrix and a bias, the bias does not decay, and
//! the loss scaler is on to show that a scaled run needs no other loop.
//!
//! Run with `cargo run -p mamba-optim --example logistic_regression`.

use mamba_optim::{
    AdamWConfig, LossScaler, OptimError, Optimizer, ParamGroups, ParamSpan, ScalerConfig, Schedule,
    ScheduleKind, StepOptions, StepOutcome,
};

/// One flower a line: four lengths in centimetres and the species.
const IRIS: &str = include_str!("iris.txt");

const FEATURES: usize = 4;
const CLASSES: usize = 3;
/// `[FEATURES, CLASSES]` weights, then `[CLASSES]` biases.
const PARAMS: usize = FEATURES * CLASSES + CLASSES;
const STEPS: u64 = 400;

struct Flower {
    x: [f32; FEATURES],
    class: usize,
}

fn main() -> Result<(), OptimError> {
    let flowers = standardised(parse(IRIS));
    println!("{} flowers, {CLASSES} species, {PARAMS} parameters", flowers.len());

    let spans = vec![
        ParamSpan::new("weight", 0..FEATURES * CLASSES, true),
        ParamSpan::new("bias", FEATURES * CLASSES..PARAMS, false),
    ];
    let schedule = Schedule::new(ScheduleKind::Cosine { warmup: 10, total: STEPS, min_factor: 0.1 })?;
    let config = AdamWConfig::default().with_lr(0.1)?.with_weight_decay(1e-3)?;
    let mut optimizer = Optimizer::new(config, ParamGroups::new(PARAMS, spans)?)
        .with_schedule(schedule)
        .with_scaler(LossScaler::new(ScalerConfig::default())?);
    optimizer.set_options(StepOptions::default().with_clip(1.0).with_skip_above(100.0))?;

    let mut params = [0.0f32; PARAMS];
    let mut grads = [0.0f32; PARAMS];
    for step in 0..STEPS {
        grads.fill(0.0);
        let (loss, correct) = loss_and_gradient(&flowers, &params, optimizer.scaler().scale(), &mut grads);
        let outcome = optimizer.step(&mut params, &mut grads)?;
        if step % 50 == 0
            && let StepOutcome::Stepped { grad_norm, clip } = outcome
        {
            println!(
                "step {step:3}  loss {loss:.4}  correct {correct:3}  norm {grad_norm:.4}  clip {clip:.3}"
            );
        }
    }
    grads.fill(0.0);
    let (loss, correct) = loss_and_gradient(&flowers, &params, 1.0, &mut grads);
    let accuracy = 100.0 * correct as f64 / flowers.len() as f64;
    println!(
        "after {STEPS} steps: loss {loss:.4}, accuracy {accuracy:.1} % ({correct} of {})",
        flowers.len()
    );
    Ok(())
}

/// Mean cross-entropy and number of correct guesses; adds `scale` times the gradient to `grads`.
fn loss_and_gradient(
    flowers: &[Flower],
    params: &[f32; PARAMS],
    scale: f32,
    grads: &mut [f32; PARAMS],
) -> (f32, usize) {
    let (weight, bias) = params.split_at(FEATURES * CLASSES);
    let (d_weight, d_bias) = grads.split_at_mut(FEATURES * CLASSES);
    let share = 1.0 / flowers.len() as f32;
    let (mut loss, mut correct) = (0.0, 0);
    for Flower { x, class } in flowers {
        let mut logits = [0.0f32; CLASSES];
        logits.copy_from_slice(bias);
        for (xi, row) in x.iter().zip(weight.chunks(CLASSES)) {
            logits.iter_mut().zip(row).for_each(|(l, w)| *l += xi * w);
        }
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        correct += usize::from(logits.iter().position(|&l| l == top) == Some(*class));
        let total: f32 = logits.iter().map(|l| (l - top).exp()).sum();
        loss -= share * (logits[*class] - top - total.ln());

        let mut d_logits = logits.map(|l| scale * share * (l - top).exp() / total);
        d_logits[*class] -= scale * share;
        d_bias.iter_mut().zip(d_logits).for_each(|(d, dl)| *d += dl);
        for (xi, row) in x.iter().zip(d_weight.chunks_mut(CLASSES)) {
            row.iter_mut().zip(d_logits).for_each(|(d, dl)| *d += xi * dl);
        }
    }
    (loss, correct)
}

fn parse(text: &str) -> Vec<Flower> {
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    lines
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let mut x = [0.0; FEATURES];
            for xi in &mut x {
                *xi = fields.next()?.parse().ok()?;
            }
            Some(Flower { x, class: fields.next()?.parse().ok()? })
        })
        .collect()
}

/// Each measurement with mean 0 and variance 1.
fn standardised(mut flowers: Vec<Flower>) -> Vec<Flower> {
    let n = flowers.len() as f32;
    for i in 0..FEATURES {
        let mean = flowers.iter().map(|f| f.x[i]).sum::<f32>() / n;
        let variance = flowers.iter().map(|f| (f.x[i] - mean).powi(2)).sum::<f32>() / n;
        flowers.iter_mut().for_each(|f| f.x[i] = (f.x[i] - mean) / variance.sqrt());
    }
    flowers
}
