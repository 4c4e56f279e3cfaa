//! Any bytes as a seccomp filter, and as a system call for the filter.
#![no_main]

use tiexec_core::seccomp::{CallData, Filter, Instruction, Value};

libfuzzer_sys::fuzz_target!(|input: ([u64; 7], Vec<(u16, u8, u8, u32)>)| {
    let ([number, args @ ..], instructions) = input;
    let instructions: Vec<Instruction> = instructions
        .into_iter()
        .map(|(code, jump_true, jump_false, constant)| Instruction {
            code,
            jump_true,
            jump_false,
            constant,
        })
        .collect();
    let Ok(filter) = Filter::new(&instructions) else { return };
    let call = |args, instruction_pointer| CallData {
        number: number as u32,
        architecture: 0xc000_003e,
        instruction_pointer,
        args,
    };
    let known = filter.answer(&call(args.map(Value::Is), Value::Is(number)));
    // A call with an unknown argument never gets a better answer.
    assert!(filter.answer(&call([Value::Any; 6], Value::Any)) >= known);
});
