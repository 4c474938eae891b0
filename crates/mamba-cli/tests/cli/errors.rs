//! Every bad flag, file and size gives one clear line.

use crate::Place;

#[test]
fn bad_flags_are_named_with_exit_code_2() {
    let place = Place::with_text();
    for (line, wanted) in [
        ("train", "--data"),
        ("train --data", "--data"),
        ("train --dta text.txt", "--dta"),
        ("trian", "trian"),
        ("train --data text.txt --lr", "--lr"),
        ("train --data text.txt --lr fast", "fast"),
        ("train --data text.txt --lr 0", "`--lr` is 0; it must be finite and above 0"),
        ("train --data text.txt --lr -1", "`--lr` is -1;"),
        ("train --data text.txt --lr NaN", "--lr"),
        ("train --data text.txt --steps 0", "`--steps` is 0; it must be at least 1"),
        ("train --data text.txt --steps -3", "invalid value '-3' for '--steps"),
        ("train --data text.txt --batch 0", "--batch"),
        ("train --data text.txt --batch 99999999999999999999", "--batch"),
        ("train --data text.txt --seq-len 0", "--seq-len"),
        ("train --data text.txt --batch 4294967295 --seq-len 4294967295", "--batch"),
        ("train --data text.txt --d-model 0", "`--d-model` is 0; it must be 1 to"),
        ("train --data text.txt --d-state 257", "--d-state"),
        ("train --data text.txt --d-conv 33", "--d-conv"),
        ("train --data text.txt --layers 5000", "`--layers` is 5000;"),
        ("train --data text.txt --expand 0", "--expand"),
        ("train --data text.txt --beta2 1.5", "`--beta2` is 1.5; it must be at least 0 and below 1"),
        ("train --data text.txt --clip -2", "`--clip` is -2;"),
        ("train --data text.txt --skip-z-score=-2", "--skip-z-score"),
        ("train --data text.txt --val-fraction 1", "--val-fraction"),
        ("train --data text.txt --val-fraction NaN", "--val-fraction"),
        ("train --data text.txt --warmup 1000 --steps 1000", "--warmup"),
        ("train --data text.txt --schedule exponential", "exponential"),
        ("train --data text.txt --device gpu", "cuda:N"),
        ("train --data text.txt --device cuda:-1", "cuda:N"),
        ("train --data text.txt --dtype fp8", "fp8"),
        ("train --data text.txt --gemm fast", "cublas-fast"),
        ("train --data text.txt --threads 0", "--threads"),
        ("train --data text.txt --resume run --lr 1", "`--lr` cannot go with `--resume`"),
        ("train --resume run --steps 400", "--init-from run"),
        ("train --data text.txt --init-from x --d-model 64", "--init-from"),
        ("generate --model x", "--prompt"),
        ("generate --model x --prompt a --temperature -1", "`--temperature` is -1;"),
        ("generate --model x --prompt a --top-k 0", "--top-k"),
        ("generate --model x --prompt a --top-p 1.5", "--top-p"),
        ("eval --model x --data text.txt --batch 0", "--batch"),
        ("export --model x --format onnx --out y", "onnx"),
        ("export --model x --format native --dtype bf16 --out y", "--dtype"),
        ("bench --steps 0", "--steps"),
        ("bench --vocab 0", "--vocab"),
        ("bench --d-state 0", "--d-state"),
    ] {
        let error = place.fails(2, line);
        assert!(error.contains(wanted), "{line}: {error}");
    }
    // Nothing was begun.
    assert!(!place.path("runs").exists());
}

#[test]
fn bad_files_are_named_with_exit_code_1() {
    let place = Place::with_text();
    let write = |name: &str, bytes: &[u8]| std::fs::write(place.path(name), bytes).unwrap();
    write("empty.txt", b"");
    write("short.txt", b"too short");
    write("junk.state", b"MAMBATRNjunk");
    write("junk.safetensors", &[0xff; 64]);
    write("junk.json", b"{");
    write("wide.bin", &(0..900u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>());
    std::fs::create_dir(place.path("empty")).unwrap();
    for (line, wanted) in [
        ("train --data nowhere", "nowhere"),
        ("train --data empty.txt", "empty.txt: the file is empty"),
        ("train --data empty", "no text in this folder; left out: no file"),
        ("train --data short.txt", "short.txt"),
        ("train --data short.txt", "a smaller `--batch` or `--seq-len`"),
        ("train --data wide.bin", "--token-width u32"),
        ("train --data text.txt --tokenizer nowhere.json", "nowhere.json"),
        ("train --data text.txt --tokenizer junk.json", "junk.json"),
        ("train --data text.txt --init-from nowhere", "nowhere"),
        ("train --data text.txt --out empty", "exists"),
        ("train --data text.txt --dtype bf16 --device cpu", "bf16"),
        ("train --data text.txt --d-model 1048576 --layers 4096", "memory"),
        ("train --data text.txt --batch 65536 --seq-len 65536", "memory"),
        ("bench --batch 16777216 --seq-len 16777216", "memory"),
        ("train --resume nowhere", "nowhere: no run folder"),
        ("train --resume empty", "config.json"),
        ("generate --model nowhere --prompt a", "nowhere"),
        ("generate --model junk.state --prompt a", "junk.state"),
        ("generate --model junk.safetensors --prompt a", "junk.safetensors"),
        ("generate --model empty --prompt a", "empty"),
        ("eval --model nowhere --data text.txt", "nowhere"),
        ("info nowhere", "nowhere"),
        ("info junk.safetensors", "junk.safetensors: no run"),
        ("info junk.state", "junk.state: no run"),
        ("info empty", "empty: no run"),
        ("export --model text.txt --format hf --out empty", "empty exists already; give a new path"),
        ("info text.txt", "text.txt: no run, no weights and no training state"),
        ("export --model nowhere --format hf --out y", "nowhere"),
        ("import --from nowhere --out y", "nowhere"),
    ] {
        let error = place.fails(1, line);
        assert!(error.contains(wanted), "{line}: {error}");
        assert!(place.run(line).stdout.is_empty(), "{line}");
    }
    assert!(!place.path("runs").exists() && !place.path("y").exists());
}

#[test]
fn a_gpu_that_is_not_there_gives_one_line() {
    let place = Place::with_text();
    // No machine has so many.
    let error = place.fails(1, "train --data text.txt --device cuda:999");
    assert!(error.contains("cuda:999"), "{error}");
}

#[test]
fn a_damaged_run_is_refused_and_left_alone() {
    let place = Place::with_text();
    place.train("run", "--stop-after 5");
    let (config, state) = (place.bytes("run/config.json"), place.bytes("run/checkpoints/last.state"));
    let write = |name: &str, bytes: &[u8]| std::fs::write(place.path(name), bytes).unwrap();

    let mut flipped = state.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    for (bytes, wanted) in
        [(&flipped[..], "last.state"), (&state[..state.len() - 9], "last.state"), (b"", "last.state")]
    {
        write("run/checkpoints/last.state", bytes);
        let error = place.fails(1, "train --resume run");
        assert!(error.contains(wanted) && error.contains("`--init-from run`"), "{error}");
        assert_eq!(place.bytes("run/checkpoints/last.state"), bytes);
    }
    write("run/checkpoints/last.state", &state);

    let text = String::from_utf8(config.clone()).unwrap();
    for (from, to, wanted) in [
        ("\"version\": 1", "\"version\": 2", "version"),
        ("\"seq_len\"", "\"seq_length\"", "seq_length"),
        ("\"d_state\": 4", "\"d_state\": 4000", "d_state"),
        ("\"batch\": 2", "\"batch\": 3", "batch"),
        ("\"seq_len\": 32", "\"seq_len\": 0", "seq-len"),
    ] {
        assert!(text.contains(from), "{from} in {text}");
        write("run/config.json", text.replacen(from, to, 1).as_bytes());
        let output = place.run("train --resume run");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && error.lines().count() == 1 && error.contains(wanted),
            "{to}: {error}"
        );
    }
    write("run/config.json", &config);

    write("text.txt", b"another text of no importance, long enough to be cut into windows of thirty-two bytes each, for both parts");
    let error = place.fails(1, "train --resume run");
    assert!(error.contains("changed"), "{error}");
}

#[test]
fn a_run_that_saved_nothing_is_told_from_no_run() {
    let place = Place::with_text();
    place.train("run", "--stop-after 5");
    let error = place.fails(1, &format!("train --data text.txt --out run {}", crate::TINY));
    assert!(error.contains("is a run already") && error.contains("--resume run"), "{error}");
    std::fs::remove_file(place.path("run/weights.safetensors")).unwrap();
    // The state has the weights, too.
    place.ok("generate --model run --prompt line --tokens 1");
    std::fs::remove_file(place.path("run/checkpoints/last.state")).unwrap();
    for line in ["train --resume run", "generate --model run --prompt line", "info run"] {
        let error = place.fails(1, line);
        assert!(
            error.contains("run: the run ended before its first checkpoint; start anew"),
            "{line}: {error}"
        );
    }
}

#[test]
fn a_run_that_diverges_says_so() {
    let place = Place::with_text();
    let line = format!("train --data text.txt --out run {} --lr 1e30 --warmup 0 --clip 0", crate::TINY);
    let output = place.run(&line);
    let told = String::from_utf8_lossy(&output.stderr);
    let error = told.lines().last().unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(error.starts_with("error: the run diverged at step "), "{told}");
    assert!(error.contains("nothing was saved from there") && error.contains("lower `--lr`"), "{error}");
}

#[test]
fn diagnostics_in_a_pipe_have_no_colours() {
    let place = Place::with_text();
    let output = place.run(&format!("train --data . --out run {} -vv", crate::TINY));
    assert!(!output.stderr.is_empty() && !output.stderr.contains(&0x1b));
}

#[test]
fn every_command_explains_itself() {
    let place = Place::with_text();
    for name in ["train", "generate", "eval", "info", "export", "import", "bench"] {
        let help = place.ok(&format!("{name} --help"));
        assert!(help.contains("Usage: mamba"), "{help}");
    }
    assert!(place.ok("--version").starts_with("mamba 0."));
    let output = place.run("");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Usage"));
}
