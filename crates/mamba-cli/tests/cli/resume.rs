//! A run that was interrupted equals one that was not.

use crate::{Place, TINY};

#[test]
fn interrupted_and_resumed_is_the_unbroken_run_bit_for_bit() {
    let place = Place::with_text();
    for (i, extra) in [
        "",
        "--stateful --skip-z-score 6",
        "--accumulate 3 --schedule wsd --untied",
        "--clip 0.05 --skip-above 2.5",
    ]
    .into_iter()
    .enumerate()
    {
        let (whole, parts) = (format!("whole{i}"), format!("parts{i}"));
        place.train(&whole, extra);
        let said = place.train(&parts, &format!("{extra} --stop-after 5"));
        assert!(said.contains(&format!("mamba train --resume {parts}")), "{said}");
        place.ok(&format!("train --resume {parts} --stop-after 1 --threads 1"));
        place.ok(&format!("train --resume {parts} --threads 1"));
        let same = |name: &str| {
            assert!(
                place.bytes(&format!("{whole}/{name}")) == place.bytes(&format!("{parts}/{name}")),
                "{name}, {extra}"
            );
        };
        same("checkpoints/last.state");
        same("checkpoints/best.safetensors");
        same("weights.safetensors");
        same("summary.json");
        let metrics = place.metrics(&whole);
        assert_eq!(metrics, place.metrics(&parts), "{extra}");
        let steps: Vec<u64> = metrics.iter().map(|m| m["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, [2, 4, 6, 8, 10, 12], "{extra}");
        assert!(
            metrics[1]["val_loss"].is_number()
                && metrics[5]["val_bpb"].is_number()
                && metrics[0].get("val_loss").is_none()
        );
        assert!(
            place.ok(&format!("train --resume {parts}")).contains("nothing is left to do after 12 steps")
        );
    }
}

#[test]
fn outliers_are_told_and_a_resumed_run_skips_the_same_ones() {
    let place = Place::with_text();
    let line = format!("train --data text.txt --out whole {TINY} --steps 30 --lr 1e-4 --skip-z-score 1");
    let line = line.replacen("--steps 12 ", "", 1);
    let output = place.run(&line);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    let outliers = |text: &str| text.lines().filter(|l| l.contains("an outlier by --skip-z-score")).count();
    assert!(outliers(&told) > 0, "{told}");
    place.ok(&format!("{} --stop-after 20", line.replace("whole", "parts")));
    let told = place.run("train --resume parts --threads 1");
    assert!(outliers(&String::from_utf8_lossy(&told.stderr)) > 0, "{told:?}");
    assert!(place.bytes("whole/checkpoints/last.state") == place.bytes("parts/checkpoints/last.state"));
}

#[test]
fn threads_and_recomputing_change_no_bit() {
    let place = Place::with_text();
    place.train("one", "");
    place.ok(&format!("train --data text.txt --out three {}", TINY.replace("--threads 1", "--threads 3")));
    assert!(place.bytes("one/checkpoints/last.state") == place.bytes("three/checkpoints/last.state"));
    place.train("again", "--recompute");
    assert!(place.bytes("one/weights.safetensors") == place.bytes("again/weights.safetensors"));
    place.train("seed", "--seed 1");
    assert!(place.bytes("one/weights.safetensors") != place.bytes("seed/weights.safetensors"));
}

#[test]
fn lines_logged_after_the_checkpoint_are_dropped() {
    let place = Place::with_text();
    place.train("whole", "");
    place.train("killed", "--stop-after 5");
    // What a process leaves that was killed between two checkpoints.
    let mut text = String::from_utf8(place.bytes("killed/metrics.jsonl")).unwrap();
    text.push_str("{\"step\":6,\"tokens\":384,\"loss\":9.0}\n{\"step\":8,\"tok");
    std::fs::write(place.path("killed/metrics.jsonl"), text).unwrap();
    place.ok("train --resume killed --threads 1");
    assert_eq!(place.metrics("whole"), place.metrics("killed"));
}

#[test]
fn a_run_moves_with_its_data() {
    let place = Place::with_text();
    place.train("run", "--stop-after 5");
    std::fs::rename(place.path("text.txt"), place.path("moved.txt")).unwrap();
    std::fs::rename(place.path("run"), place.path("elsewhere")).unwrap();
    let error = place.fails(1, "train --resume elsewhere");
    assert!(error.contains("text.txt"), "{error}");
    place.ok("train --resume elsewhere --data moved.txt --threads 1");
    std::fs::write(place.path("text.txt"), place.bytes("moved.txt")).unwrap();
    place.train("whole", "");
    assert!(place.bytes("whole/weights.safetensors") == place.bytes("elsewhere/weights.safetensors"));
}

#[test]
fn the_folder_holds_what_it_should_and_the_output_is_plain() {
    let place = Place::with_text();
    let output = place.run(&format!("train --data text.txt --out run {TINY}"));
    assert!(output.status.success());
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    for (name, text) in [("stdout", &out), ("stderr", &err)] {
        assert!(!text.contains('\x1b') && !text.contains('\r'), "{name}: {text}");
    }
    // One line a log, one a validation.
    assert_eq!(err.lines().filter(|l| l.contains("tokens/s")).count(), 6, "{err}");
    assert_eq!(err.lines().filter(|l| l.contains("validation loss")).count(), 3, "{err}");
    for text in
        ["validation (final, ", "bits per byte", "unigram entropy", "sample (", "⟫", "8,560 parameters"]
    {
        assert!(out.contains(text), "{text}: {out}");
    }
    let names: Vec<String> = std::fs::read_dir(place.path("run"))
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    for name in [
        "config.json",
        "metrics.jsonl",
        "loss.svg",
        "loss.png",
        "weights.safetensors",
        "checkpoints",
        "summary.json",
    ] {
        assert!(names.iter().any(|n| n == name), "{name}: {names:?}");
    }
    assert_eq!(names.iter().filter(|n| n.contains("tfevents")).count(), 1, "{names:?}");
    assert_eq!(names.len(), 8, "{names:?}");
    let summary: serde_json::Value = serde_json::from_slice(&place.bytes("run/summary.json")).unwrap();
    assert_eq!((summary["steps"].as_u64(), summary["tokens"].as_u64()), (Some(12), Some(12 * 64)));
    let printed = format!("{:.4} bits per byte", summary["val_bpb"].as_f64().unwrap());
    assert!(out.contains(&printed), "{printed}: {out}");
}

#[test]
fn runs_are_numbered_and_stay_out_of_the_next_ones_data() {
    let place = Place::with_text();
    std::fs::write(place.path("binary"), [0; 9]).unwrap();
    for n in 1..=2 {
        let said = place.ok(&format!("train --data . {TINY} --stop-after 1"));
        assert!(said.contains("; 1 file read, 1 file left out (-v lists them)"), "{said}");
        assert!(said.contains(&format!("runs/{n}")), "{said}");
    }
    let config = |n: u32| -> serde_json::Value {
        serde_json::from_slice(&place.bytes(&format!("runs/{n}/config.json"))).unwrap()
    };
    assert_eq!(config(1)["fingerprint"], config(2)["fingerprint"]);
}
