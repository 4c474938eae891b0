//! Ctrl-C and termination during a training.

#![cfg(unix)]

use crate::{Place, TINY};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

const LONG: &str = "--steps 100000 --log-every 1 --eval-every 0 --save-every 0";

fn start(place: &Place, out: &str) -> Child {
    let line = format!("train --data text.txt --out {out} {TINY}");
    let line = line.replace("--steps 12", "").replace("--log-every 2", "").replace("--eval-every 4", "");
    let line = line.replace("--save-every 3", "") + " " + LONG;
    place.command(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn a_signal_saves_what_an_unbroken_run_would_have() {
    let place = Place::with_text();
    for name in ["-INT", "-TERM"] {
        let out = format!("run{name}");
        let mut child = start(&place, &out);
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        while !lines.next().unwrap().unwrap().starts_with("step 3/") {}
        signal(&child, name);
        // A full pipe would stop the child before it sees the signal.
        let rest = lines.map(Result::unwrap).count();
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success(), "{said}");
        assert!(said.contains(&format!("mamba train --resume {out}")), "{said}");
        let metrics = place.metrics(&out);
        let step = metrics.last().unwrap()["step"].as_u64().unwrap();
        assert!(
            step as usize == 3 + rest && said.contains(&format!("saved at step {step} of 100000")),
            "{said}"
        );

        place.ok(&format!("train --resume {out} --threads 1 --stop-after 4"));
        let whole = format!("whole{name}");
        let line =
            format!("train --data text.txt --out {whole} --d-model 16 --layers 2 --d-state 4 --batch 2");
        let line = format!("{line} --seq-len 32 --threads 1 --eval-batches 2 --sample-tokens 8 {LONG}");
        place.ok(&format!("{line} --stop-after {}", step + 4));
        assert!(
            place.bytes(&format!("{out}/checkpoints/last.state"))
                == place.bytes(&format!("{whole}/checkpoints/last.state"))
        );
        assert_eq!(place.metrics(&out), place.metrics(&whole));
    }
}

#[test]
fn one_process_at_a_time_trains_a_run() {
    let place = Place::with_text();
    let mut child = start(&place, "run");
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    while !lines.next().unwrap().unwrap().starts_with("step 1/") {}
    let error = place.fails(1, "train --resume run");
    assert!(error.contains("another process"), "{error}");
    signal(&child, "-INT");
    lines.for_each(drop);
    assert!(child.wait().unwrap().success());
}
