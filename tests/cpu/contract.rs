//! The trainer contract on the CPU.

use mamba_tests::contract::Target;
use mamba_tests::{contract_tests, contract_tests_of};

contract_tests!(Target::CPU);
