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
        ("train --data text.txt --lr 0", "lr"),
        ("train --data text.txt --lr=-1", "lr"),
        ("train --data text.txt --lr NaN", "lr"),
        ("train --data text.txt --steps 0", "--steps"),
        ("train --data text.txt --steps=-3", "-3"),
        ("train --data text.txt --batch 0", "--batch"),
        ("train --data text.txt --batch 99999999999999999999", "--batch"),
        ("train --data text.txt --seq-len 0", "--seq-len"),
        ("train --data text.txt --batch 4294967295 --seq-len 4294967295", "--batch"),
        ("train --data text.txt --d-model 0", "d_model"),
        ("train --data text.txt --d-state 257", "d_state"),
        ("train --data text.txt --d-conv 33", "d_conv"),
        ("train --data text.txt --layers 5000", "n_layers"),
        ("train --data text.txt --expand 0", "expand"),
        ("train --data text.txt --beta2 1.5", "beta2"),
        ("train --data text.txt --clip=-2", "--clip"),
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
        ("train --data text.txt --resume run --lr 1", "--resume"),
        ("train --resume run --d-model 64", "--resume"),
        ("train --data text.txt --init-from x --d-model 64", "--init-from"),
        ("generate --model x", "--prompt"),
        ("generate --model x --prompt a --temperature=-1", "--temperature"),
        ("generate --model x --prompt a --top-k 0", "--top-k"),
        ("generate --model x --prompt a --top-p 1.5", "--top-p"),
        ("eval --model x --data text.txt --batch 0", "--batch"),
        ("export --model x --format onnx --out y", "onnx"),
        ("export --model x --format native --dtype bf16 --out y", "--dtype"),
        ("bench --steps 0", "--steps"),
        ("bench --vocab 0", "vocab_size"),
        ("bench --d-state 0", "d_state"),
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
    std::fs::create_dir(place.path("empty")).unwrap();
    for (line, wanted) in [
        ("train --data nowhere", "nowhere"),
        ("train --data empty.txt", "empty.txt"),
        ("train --data empty", "empty"),
        ("train --data short.txt", "short.txt"),
        ("train --data text.txt --tokenizer nowhere.json", "nowhere.json"),
        ("train --data text.txt --tokenizer junk.json", "junk.json"),
        ("train --data text.txt --init-from nowhere", "nowhere"),
        ("train --data text.txt --out empty", "exists"),
        ("train --data text.txt --dtype bf16 --device cpu", "bf16"),
        ("train --data text.txt --d-model 1048576 --layers 4096", "memory"),
        ("train --data text.txt --batch 65536 --seq-len 65536", "memory"),
        ("bench --batch 16777216 --seq-len 16777216", "memory"),
        ("train --resume nowhere", "nowhere"),
        ("train --resume empty", "config.json"),
        ("generate --model nowhere --prompt a", "nowhere"),
        ("generate --model junk.state --prompt a", "junk.state"),
        ("generate --model junk.safetensors --prompt a", "junk.safetensors"),
        ("generate --model empty --prompt a", "empty"),
        ("eval --model nowhere --data text.txt", "nowhere"),
        ("info nowhere", "nowhere"),
        ("info junk.safetensors", "junk.safetensors"),
        ("info text.txt", "text.txt"),
        ("export --model nowhere --format hf --out y", "nowhere"),
        ("import --from nowhere --out y", "nowhere"),
    ] {
        let error = place.fails(1, line);
        assert!(error.contains(wanted), "{line}: {error}");
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
        assert!(error.contains(wanted), "{error}");
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
