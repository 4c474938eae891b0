//! Using a trained model: text, measures, other formats.

use crate::Place;

#[test]
fn the_same_seed_writes_the_same_text() {
    let place = Place::with_text();
    place.train("run", "");
    let generate =
        |extra: &str| place.run(&format!("generate --model run --prompt line --tokens 40 {extra}")).stdout;
    let text = generate("--seed 5");
    assert!(text.starts_with(b"line") && text.len() == 4 + 40 + 1, "{text:?}");
    assert_eq!(text, generate("--seed 5"));
    assert_eq!(text, generate("--seed 5 --stream"));
    assert_eq!(text, generate("--seed 5 --threads 2"));
    assert_ne!(text, generate("--seed 6"));
    let greedy = generate("--temperature 0");
    assert_eq!(greedy, generate("--temperature 0 --seed 9"));
    assert_eq!(greedy, generate("--top-k 1 --seed 9"));
    assert_eq!(place.ok("generate --model run --prompt line --tokens 0"), "line\n");
    place.fails(2, "generate --model run --prompt= --tokens 4");
}

#[test]
fn the_models_own_measure_is_that_of_its_training() {
    let place = Place::with_text();
    // One batch of one window covers the validation text of both.
    place.train("run", "");
    let said = place.ok("eval --model run --data text.txt --batch 2 --seq-len 32 --max-batches 3");
    for name in ["loss", "perplexity", "bits per byte", "unigram entropy"] {
        assert!(said.contains(name), "{said}");
    }
    let value = |name: &str| -> f64 {
        let line = said.lines().find(|l| l.starts_with(name)).unwrap();
        line.split_whitespace().find_map(|w| w.parse().ok()).unwrap()
    };
    // Both are printed with four and three digits.
    assert!((value("loss").exp() - value("perplexity")).abs() < 5e-5 * value("perplexity") + 5e-4);
    assert!((value("loss") / std::f64::consts::LN_2 - value("model")).abs() < 2e-4);
    assert_eq!(value("tokens"), 192.0);
}

#[test]
fn info_tells_what_a_path_holds() {
    let place = Place::with_text();
    place.train("run", "--untied");
    for (path, kind) in [("run", "run folder"), ("run/checkpoints/last.state", "training state")] {
        let said = place.ok(&format!("info {path} --tensors"));
        for text in [kind, "layers.1.out_proj", "d_state       4", "of its own", "finite        yes"] {
            assert!(said.contains(text), "{text}: {said}");
        }
    }
    assert!(place.ok("info run").contains("at step 12"));
}

#[test]
fn bench_prints_a_rate_and_the_phases() {
    let place = Place::with_text();
    let said =
        place.ok("bench --d-model 16 --layers 1 --batch 1 --seq-len 16 --steps 1 --threads 1 --vocab 20");
    assert!(said.contains("tokens/s") && said.contains("scan backward"), "{said}");
}
