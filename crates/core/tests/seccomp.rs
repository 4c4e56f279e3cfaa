//! Seccomp filters: known answers, and by property against an interpreter that knows everything.

use proptest::prelude::*;
use tiexec_core::seccomp::{Answer, BadFilter, CallData, Filter, Instruction, Value, answer};

const LOAD: u16 = 0x20;
const RETURN: u16 = 0x06;
const IF_EQUAL: u16 = 0x15;
const IF_ANY_BIT: u16 = 0x45;

const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
const TRACE: u32 = 0x7ff0_0000;
const USER_NOTIF: u32 = 0x7fc0_0000;
const ERRNO: u32 = 0x0005_0000;
const TRAP: u32 = 0x0003_0000;
const KILL_THREAD: u32 = 0;
const KILL_PROCESS: u32 = 0x8000_0000;

const X86_64: u32 = 0xc000_003e;
const MMAP: u32 = 9;

fn op(code: u16, constant: u32) -> Instruction {
    Instruction { code, constant, ..Instruction::default() }
}

fn branch(code: u16, constant: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code, jump_true, jump_false, constant }
}

/// Returns the offset of the low half of an argument.
fn low(index: u32) -> u32 {
    16 + 8 * index
}

fn filter(instructions: &[Instruction]) -> Filter {
    Filter::new(instructions).unwrap()
}

fn returns(what: u32) -> Filter {
    filter(&[op(RETURN, what)])
}

fn mmap(protection: Value, fd: Value) -> CallData {
    let args = [Value::Any, Value::Any, protection, Value::Is(2), fd, Value::Any];
    CallData { number: MMAP, architecture: X86_64, instruction_pointer: Value::Any, args }
}

/// The filter of systemd's `MemoryDenyWriteExecute=`: no mapping is both writable and executable.
fn no_write_and_execute() -> Filter {
    filter(&[
        op(LOAD, 4),
        branch(IF_EQUAL, X86_64, 1, 0),
        op(RETURN, KILL_PROCESS),
        op(LOAD, 0),
        branch(IF_EQUAL, MMAP, 0, 4),
        op(LOAD, low(2)),
        op(0x54, 6),
        branch(IF_EQUAL, 6, 0, 1),
        op(RETURN, ERRNO | 1),
        op(RETURN, ALLOW),
    ])
}

#[test]
fn an_argument_that_is_known_decides() {
    let filter = no_write_and_execute();
    let known = |protection| filter.answer(&mmap(Value::Is(protection), Value::Small));
    assert_eq!(known(5), Answer::ALLOW);
    assert_eq!(known(7), Answer::new(ERRNO | 1));
    assert_eq!(known(7).to_string(), "answered with error 1");
    // The value is unknown, so the filter may refuse.
    assert_eq!(filter.answer(&mmap(Value::Any, Value::Small)), Answer::new(ERRNO | 1));
    let other = CallData { number: 10, ..mmap(Value::Is(7), Value::Any) };
    assert_eq!(filter.answer(&other), Answer::ALLOW);
    let foreign = CallData { architecture: 3, ..mmap(Value::Is(5), Value::Any) };
    assert_eq!(filter.answer(&foreign), Answer::KILL_PROCESS);
}

#[test]
fn a_small_value_is_known_by_its_upper_half() {
    // As libseccomp compares: the upper half first.
    let upper = filter(&[
        op(LOAD, low(4) + 4),
        branch(IF_EQUAL, 0, 0, 1),
        op(RETURN, ALLOW),
        op(RETURN, TRAP),
    ]);
    assert!(upper.answer(&mmap(Value::Any, Value::Small)).is_allowed());
    assert!(upper.answer(&mmap(Value::Any, Value::Is(7))).is_allowed());
    assert_eq!(upper.answer(&mmap(Value::Any, Value::Any)), Answer::new(TRAP));
    assert_eq!(upper.answer(&mmap(Value::Any, Value::Is(1 << 32))), Answer::new(TRAP));
    let lower = filter(&[
        op(LOAD, low(4)),
        branch(IF_ANY_BIT, 8, 0, 1),
        op(RETURN, KILL_THREAD),
        op(RETURN, ALLOW),
    ]);
    assert_eq!(lower.answer(&mmap(Value::Any, Value::Small)), Answer::new(KILL_THREAD));
    assert!(lower.answer(&mmap(Value::Any, Value::Is(7))).is_allowed());
}

#[test]
fn of_several_filters_the_most_severe_prevails() {
    let call = mmap(Value::Is(5), Value::Small);
    let severe = [KILL_PROCESS, KILL_THREAD, TRAP, ERRNO | 13, USER_NOTIF, TRACE, LOG, ALLOW];
    for (index, &one) in severe.iter().enumerate() {
        for &other in &severe[index..] {
            for filters in [[returns(one), returns(other)], [returns(other), returns(one)]] {
                assert_eq!(answer(&filters, &call), Answer::new(one), "{one:#x} {other:#x}");
            }
        }
        assert_eq!(Answer::new(one).is_allowed(), matches!(one, LOG | ALLOW), "{one:#x}");
    }
    assert_eq!(answer(&[], &call), Answer::ALLOW);
    // The kernel answers an unknown action by killing.
    assert!(!answer(&[returns(0x7ffe_0000)], &call).is_allowed());
    assert!(!answer(&[returns(0x0001_0000)], &call).is_allowed());
}

#[test]
fn what_the_kernel_would_not_install() {
    assert_eq!(Filter::new(&[]), Err(BadFilter::Length(0)));
    assert_eq!(Filter::new(&vec![op(RETURN, 0); 4097]), Err(BadFilter::Length(4097)));
    assert!(Filter::new(&vec![op(RETURN, 0); 4096]).is_ok());
    assert_eq!(Filter::new(&[op(LOAD, 0)]), Err(BadFilter::NoReturn));
    for bad in [
        op(LOAD, 64),
        op(LOAD, 2),
        op(0x60, 16),
        op(0x02, 16),
        op(0x34, 0),
        op(0x64, 32),
        op(0x05, 1),
        op(0x05, u32::MAX),
        branch(IF_EQUAL, 0, 1, 0),
        branch(IF_EQUAL, 0, 0, 1),
    ] {
        assert_eq!(Filter::new(&[bad, op(RETURN, 0)]), Err(BadFilter::Range(0)), "{bad:?}");
    }
    // A half word, an indirect load, a modulus, a return of X.
    for code in [0x28, 0x40, 0x94, 0x0e, 0x8c, 0xffff] {
        let at = BadFilter::Code { at: 0, code };
        assert_eq!(Filter::new(&[op(code, 1), op(RETURN, 0)]), Err(at));
    }
}

#[test]
fn memory_and_arithmetic() {
    // (nr + 5) * 3 - 2, kept, divided by X = 8, returned.
    let computed = filter(&[
        op(LOAD, 0),
        op(0x04, 5),
        op(0x24, 3),
        op(0x14, 2),
        op(0x02, 15),
        op(0x01, 8),
        op(0x60, 15),
        op(0x3c, 0),
        op(0x16, 0),
    ]);
    let call = mmap(Value::Any, Value::Any);
    assert_eq!(computed.answer(&call), Answer::new(((9 + 5) * 3 - 2) / 8));
    // Division by an X of zero: the filter returns 0.
    let zero = filter(&[op(0x3c, 0), op(RETURN, ALLOW)]);
    assert_eq!(zero.answer(&call), Answer::new(KILL_THREAD));
    // The size of the data; an unknown return value is never allowed.
    assert_eq!(filter(&[op(0x80, 0), op(0x16, 0)]).answer(&call), Answer::new(64));
    let unknown = filter(&[op(LOAD, low(0)), op(0x16, 0)]);
    assert_eq!(unknown.answer(&call), Answer::KILL_PROCESS);
}

#[test]
fn where_two_ways_meet_neither_is_forgotten() {
    // One way sets a register or a word of memory from 0 to 1; then the filter tests it.
    for (set, look) in [(0x00, None), (0x01, Some(op(0x87, 0))), (0x02, Some(op(0x60, 3)))] {
        let mut all = vec![op(0x00, 0), op(0x02, 3), op(LOAD, low(0)), branch(IF_EQUAL, 7, 1, 0)];
        match set {
            0x00 => all.extend([op(0x00, 0), op(0x05, 1), op(0x00, 1)]),
            0x01 => all.extend([op(0x05, 1), op(0x01, 1)]),
            _ => all.extend([op(0x05, 2), op(0x00, 1), op(0x02, 3)]),
        }
        if set == 0x00 {
            all[3].jump_true = 2;
        }
        all.extend(look);
        let found = |value, all: &[Instruction]| {
            let mut all = all.to_vec();
            all.extend([branch(IF_EQUAL, value, 0, 1), op(RETURN, TRAP), op(RETURN, ALLOW)]);
            filter(&all).answer(&mmap(Value::Any, Value::Any))
        };
        assert_eq!(found(0, &all), Answer::new(TRAP), "{set:#x}");
        assert_eq!(found(1, &all), Answer::new(TRAP), "{set:#x}");
    }
}

#[test]
fn many_unknown_branches_take_no_longer() {
    let mut instructions = Vec::new();
    for index in 0..1365 {
        instructions.push(op(LOAD, low(index % 6)));
        instructions.push(branch(IF_EQUAL, index, 0, 1));
        instructions.push(op(0x04, 1));
    }
    instructions.push(op(RETURN, ALLOW));
    assert!(filter(&instructions).answer(&mmap(Value::Any, Value::Any)).is_allowed());
}

/// Runs the filter by the book, on data that is all known; `None` where kernels differ.
fn run(instructions: &[Instruction], data: &[u32; 16]) -> Option<u32> {
    let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [None; 16], 0);
    loop {
        let Instruction { code, jump_true, jump_false, constant } = instructions[at];
        let with = if code & 8 == 0 { constant } else { x };
        at += 1;
        let word = constant as usize;
        match code {
            0x00 => a = constant,
            0x01 => x = constant,
            0x20 => a = data[word / 4],
            0x80 => a = 64,
            0x81 => x = 64,
            0x60 => a = memory[word]?,
            0x61 => x = memory[word]?,
            0x02 => memory[word] = Some(a),
            0x03 => memory[word] = Some(x),
            0x07 => x = a,
            0x87 => a = x,
            0x06 => return Some(constant),
            0x16 => return Some(a),
            0x05 => at += word,
            0x84 => a = a.wrapping_neg(),
            _ if code & 7 == 4 => {
                a = match code >> 4 {
                    0 => a.wrapping_add(with),
                    1 => a.wrapping_sub(with),
                    2 => a.wrapping_mul(with),
                    3 if with == 0 => return Some(0),
                    3 => a / with,
                    4 => a | with,
                    5 => a & with,
                    6 => a.checked_shl(with)?,
                    7 => a.checked_shr(with)?,
                    _ => a ^ with,
                }
            }
            _ => {
                let holds = match code >> 4 {
                    1 => a == with,
                    2 => a > with,
                    3 => a >= with,
                    _ => a & with != 0,
                };
                at += usize::from(if holds { jump_true } else { jump_false });
            }
        }
    }
}

const CODES: [u16; 40] = [
    0x20, 0x20, 0x20, 0x20, 0x00, 0x01, 0x80, 0x81, 0x60, 0x61, 0x02, 0x03, 0x07, 0x87, 0x04, 0x0c,
    0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3c, 0x44, 0x4c, 0x54, 0x5c, 0x64, 0x74, 0x84, 0xa4, 0x05, 0x15,
    0x1d, 0x25, 0x2d, 0x35, 0x3d, 0x45, 0x06, 0x16,
];

/// Few numbers, so that tests often hold; in the upper half they differ as answers too.
fn small() -> impl Strategy<Value = u32> {
    let answers = (0u32..4).prop_map(|action| action << 16);
    prop_oneof![4 => 0u32..4, 4 => answers, 1 => Just(ALLOW), 1 => any::<u32>()]
}

fn instruction() -> impl Strategy<Value = Instruction> {
    (prop::sample::select(&CODES[..]), 0u8..6, 0u8..6, small()).prop_map(
        |(code, jump_true, jump_false, constant)| {
            let constant = match code {
                0x20 => constant % 16 * 4,
                0x60 | 0x61 | 0x02 | 0x03 => constant % 16,
                0x64 | 0x74 => constant % 32,
                0x05 => constant % 6,
                0x34 => constant.max(1),
                _ => constant,
            };
            Instruction { code, jump_true, jump_false, constant }
        },
    )
}

fn program() -> impl Strategy<Value = Vec<Instruction>> {
    (prop::collection::vec(instruction(), 1..40), small()).prop_map(|(mut all, last)| {
        // Jumps reach up to this far beyond the end.
        all.extend([op(0x16, 0), op(RETURN, last), op(0x16, 0), op(0x87, 0), op(0x16, 0)]);
        all.push(op(RETURN, ALLOW));
        all
    })
}

fn value() -> impl Strategy<Value = u64> {
    (small(), prop_oneof![3 => Just(0u32), 1 => small()])
        .prop_map(|(low, high)| u64::from(high) << 32 | u64::from(low))
}

/// Returns some knowledge of a value.
fn known(value: u64, how_much: u8) -> Value {
    match how_much {
        0 => Value::Any,
        1 if value >> 32 == 0 => Value::Small,
        _ => Value::Is(value),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn never_better_than_what_the_kernel_answers(
        instructions in program(),
        number in small(),
        values in prop::array::uniform7(value()),
        how_much in prop::array::uniform7(0u8..3),
    ) {
        let filter = Filter::new(&instructions).unwrap();
        let mut data = [0; 16];
        (data[0], data[1]) = (number, X86_64);
        for (pair, value) in data[2..].chunks_exact_mut(2).zip(values) {
            (pair[0], pair[1]) = (value as u32, (value >> 32) as u32);
        }
        let call = |how_much: [u8; 7]| {
            let all: Vec<Value> =
                values.iter().zip(how_much).map(|(&value, how)| known(value, how)).collect();
            CallData {
                number,
                architecture: X86_64,
                instruction_pointer: all[0],
                args: all[1..].try_into().unwrap(),
            }
        };
        let Some(returned) = run(&instructions, &data) else { return Ok(()) };
        prop_assert_eq!(filter.answer(&call([2; 7])), Answer::new(returned).max(Answer::ALLOW));
        prop_assert!(filter.answer(&call(how_much)) >= Answer::new(returned));
    }

    #[test]
    fn anything_is_a_filter_or_an_error(
        words in prop::collection::vec((any::<u16>(), any::<u8>(), any::<u8>(), any::<u32>()), 0..50),
        call in prop::array::uniform6(value()),
    ) {
        let instructions: Vec<Instruction> = words
            .into_iter()
            .map(|(code, jump_true, jump_false, constant)| Instruction {
                code: code % 0x100, jump_true: jump_true % 4, jump_false: jump_false % 4, constant,
            })
            .collect();
        if let Ok(filter) = Filter::new(&instructions) {
            let _any = filter.answer(&CallData {
                number: 1,
                architecture: X86_64,
                instruction_pointer: Value::Any,
                args: call.map(Value::Is),
            });
        }
    }
}
