//! The trainer contract on the CPU, and what a CPU answers to calls that need a GPU.
#![allow(clippy::unwrap_used)]

use mamba_tests::contract::{Batch, Target, assert_same, snapshot};
use mamba_tests::{contract_tests, contract_tests_of};
use mamba_trainer::{BackwardOpts, Decoder, Device, TrainerError, WeightDtype};

contract_tests!(Target::CPU);

#[test]
fn calls_for_device_memory_are_refused_and_change_nothing() {
    let mut trainer = Target::CPU.backbone();
    let batch = Batch::new(1);
    trainer.step(&batch.input, &batch.d_temporal).unwrap();
    trainer.forward(&batch.input, &mut Batch::temporal()).unwrap();
    let before = snapshot(&mut trainer);
    let refusals = [
        trainer.device_buffers().map(drop),
        trainer.step_on_device().map(drop),
        trainer.forward_on_device(),
        trainer.backward_step_on_device(BackwardOpts::new()).map(drop),
    ];
    for refusal in refusals {
        let error = refusal.unwrap_err();
        assert!(matches!(error, TrainerError::NotAvailable { .. }), "{error}");
        assert!(error.to_string().contains("host memory"), "{error}");
    }
    assert_same(&before, &snapshot(&mut trainer), "after the refusals");
    assert!(trainer.has_pending_forward());
}

#[test]
fn a_decoder_has_the_bits_of_a_prompt_and_refuses_what_is_not_there() {
    let weights = Target::lm_weights(true);
    let build = || Decoder::new(&weights, 2, Device::Cpu, WeightDtype::F32).unwrap();
    let (mut whole, mut singly) = (build(), build());
    let logits = whole.prefill(&[1, 2, 3, 4, 5, 6]).unwrap().to_vec();
    let mut last = Vec::new();
    for ids in [[1, 4], [2, 5], [3, 6]] {
        last = singly.step(&ids).unwrap().to_vec();
    }
    assert_eq!(logits, last);
    assert!(singly.step(&[1]).is_err() && singly.prefill(&[1, 99]).is_err() && singly.prefill(&[]).is_err());
    assert_eq!(singly.state().unwrap(), whole.state().unwrap());
    whole.reset().unwrap();
    whole.load_state(&singly.state().unwrap()).unwrap();
    assert_eq!(whole.step(&[7, 8]).unwrap(), singly.step(&[7, 8]).unwrap());
    assert!(Decoder::new(&weights, 2, Device::Cpu, WeightDtype::Bf16).is_err());
    assert!(Decoder::new(&weights, 0, Device::Cpu, WeightDtype::F32).is_err());
}
