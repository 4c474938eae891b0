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
fn the_measures_of_eval_agree() {
    let place = Place::with_text();
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
    let said = place.ok("info run");
    assert!(
        said.contains("at step 12 (at most 128 tokens)") && said.contains("at step 12 (final, "),
        "{said}"
    );
}

#[test]
fn bench_prints_a_rate_and_the_phases() {
    let place = Place::with_text();
    let said =
        place.ok("bench --d-model 16 --layers 1 --batch 1 --seq-len 16 --steps 1 --threads 1 --vocab 20");
    assert!(said.contains("tokens/s") && said.contains("scan backward"), "{said}");
}

#[test]
fn every_format_leads_back_to_the_same_weights() {
    let place = Place::with_text();
    for (i, extra) in ["", "--untied --d-conv 3"].into_iter().enumerate() {
        let run = format!("run{i}");
        place.train(&run, extra);
        let original = place.bytes(&format!("{run}/weights.safetensors"));
        for format in ["hf", "state-spaces"] {
            let (out, back) = (format!("new/{format}{i}"), format!("back/{format}{i}.safetensors"));
            place.ok(&format!("export --model {run} --format {format} --out {out}"));
            place.ok(&format!("import --from {out} --out {back}"));
            assert!(place.bytes(&back) == original, "{format} {extra}");
            assert!(place.ok(&format!("info {out}")).contains("pretrained checkpoint"));
            let error = place.fails(1, &format!("export --model {run} --format {format} --out {out}"));
            assert!(error.contains("exists already") && !error.contains("--resume"), "{error}");
            // Half precision loses bits, but is the same model.
            let half = format!("{format}{i}-bf16");
            place.ok(&format!("export --model {run} --format {format} --dtype bf16 --out {half}"));
            place.ok(&format!("import --from {half} --out {half}.safetensors"));
            assert!(place.bytes(&format!("{half}.safetensors")) != original, "{format} {extra}");
        }
        let native = format!("native{i}.safetensors");
        place.ok(&format!("export --model {run}/checkpoints/last.state --format native --out {native}"));
        assert!(place.bytes(&native) == original);
        let error = place.fails(1, &format!("import --from {native} --out x"));
        assert!(error.contains("native"), "{error}");
        let text =
            |model: &str| place.ok(&format!("generate --model {model} --prompt line --top-k 5 --tokens 20"));
        assert_eq!(text(&run), text(&format!("new/hf{i}")));
        assert_eq!(text(&run), text(&native));
    }
}

#[test]
fn training_starts_from_given_weights() {
    let place = Place::with_text();
    place.train("run", "");
    let start = "--batch 2 --seq-len 32 --steps 2 --sample-tokens 0 --log-every 1";
    let said = place.ok(&format!("train --data text.txt --init-from run --out next {start}"));
    assert!(said.contains("8,560 parameters") && said.contains("given weights"), "{said}");
    let first = |run: &str| place.metrics(run)[0]["loss"].as_f64().unwrap();
    place.ok(&format!("train --data text.txt --d-model 16 --layers 2 --d-state 4 --out fresh {start}"));
    assert!(first("next") < first("fresh"), "{} {}", first("next"), first("fresh"));
}

/// A byte-level tokenizer of printable ASCII, blank and line end, with two merges.
fn write_tokenizer(place: &Place) {
    let mut tokens: Vec<String> = (33u8..127).map(|b| char::from(b).to_string()).collect();
    // How byte-level tokenizers write blank and line end.
    tokens.extend(["\u{120}", "\u{10a}", "li", "ne"].map(str::to_owned));
    let vocab: serde_json::Map<_, _> =
        tokens.iter().zip(0u32..).map(|(t, i)| (t.clone(), i.into())).collect();
    let level = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
            "merges": ["l i", "n e"]},
    });
    std::fs::write(place.path("tok.json"), tokenizer.to_string()).unwrap();
}

#[test]
fn a_tokenizer_goes_with_its_model() {
    let place = Place::with_text();
    write_tokenizer(&place);
    let said = place.train("run", "--tokenizer tok.json");
    assert!(said.contains("unigram entropy"), "{said}");
    // Everything the model needs lies in its folder.
    std::fs::remove_file(place.path("tok.json")).unwrap();
    let said = place.ok("generate --model run --prompt line --tokens 3 --temperature 0 --stream");
    assert!(said.starts_with("line"), "{said}");
    assert_eq!(said, place.ok("generate --model run --prompt line --tokens 3 --temperature 0"));
    place.ok("generate --model run/checkpoints/best.safetensors --prompt line --tokens 3");
    assert!(place.ok("info run").contains("vocab_size    98"));
    let said = place.ok("eval --model run --data text.txt --seq-len 32");
    let value = |name: &str| -> f64 {
        let line = said.lines().find(|l| l.starts_with(name)).unwrap();
        line.split_whitespace().find_map(|w| w.parse().ok()).unwrap()
    };
    let bytes_per_token = value("loss") / std::f64::consts::LN_2 / value("model");
    // `line` is 2 tokens of 4 bytes in each of the 600 lines, everything else one token a byte.
    let bytes = place.bytes("text.txt").len() as f64;
    // Both figures are printed with four digits after the point: measured 1e-6.
    let expected = bytes / (bytes - 1200.0);
    assert!((bytes_per_token - expected).abs() < 5e-5, "{bytes_per_token} {expected}");
}

#[test]
fn token_files_are_read_in_both_widths() {
    let place = Place::with_text();
    let ids: Vec<u32> = (0..4000u32).map(|i| i * i % 300).collect();
    let narrow: Vec<u8> = ids.iter().flat_map(|&i| (i as u16).to_le_bytes()).collect();
    let wide: Vec<u8> = ids.iter().flat_map(|i| i.to_le_bytes()).collect();
    std::fs::write(place.path("narrow.bin"), narrow).unwrap();
    std::fs::write(place.path("wide.bin"), wide).unwrap();
    let train = |data: &str, out: &str| place.ok(&format!("train --data {data} --out {out} {}", crate::TINY));
    let said = train("narrow.bin", "narrow");
    assert!(said.contains("validation") && !said.contains("bits per byte"), "{said}");
    train("wide.bin --token-width u32", "wide");
    assert!(place.bytes("narrow/weights.safetensors") == place.bytes("wide/weights.safetensors"));
    assert_eq!(place.ok("generate --model narrow --prompt=1 --tokens 3").split_whitespace().count(), 4);
    let error = place.fails(2, "generate --model narrow --prompt one --tokens 3");
    assert!(error.contains("token ids"), "{error}");
    let error = place.fails(1, "generate --model narrow --prompt 300 --tokens 3");
    assert!(error.contains("300"), "{error}");
}

#[test]
fn a_model_is_not_measured_on_too_little_or_foreign_text() {
    let place = Place::with_text();
    place.train("run", "");
    std::fs::write(place.path("short.txt"), "short").unwrap();
    // The run's own --seq-len.
    let error = place.fails(1, "eval --model run --data short.txt");
    assert!(error.contains("`--seq-len` 32") && !error.contains("--val-fraction"), "{error}");
    let foreign: Vec<u8> = (0..600u16).flat_map(|i| i.to_le_bytes()).collect();
    std::fs::write(place.path("foreign.bin"), foreign).unwrap();
    let error = place.fails(1, "eval --model run --data foreign.bin");
    assert!(error.contains("byte by byte"), "{error}");
    std::fs::copy(place.path("run/weights.safetensors"), place.path("alone.safetensors")).unwrap();
    let error = place.fails(1, "eval --model alone.safetensors --data foreign.bin --seq-len 32");
    assert!(error.contains("600") && error.contains("256") && !error.contains("tokenizer"), "{error}");
    write_tokenizer(&place);
    let line = format!("train --data foreign.bin --tokenizer tok.json --out other {}", crate::TINY);
    let error = place.fails(1, &line);
    assert!(error.contains("599") && error.contains("98"), "{error}");
    assert!(!place.path("other").exists());
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::with_text();
    place.train("run", "");
    let mut command = place.command("generate --model run --prompt line --tokens 1000000 --stream");
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}
