//! The answer of seccomp filters to a system call, before any thread makes the call (seccomp(2)).
//!
//! A filter is a classic BPF program over `struct seccomp_data`. Before a call is made, not all of
//! that structure is known: an address and a descriptor are missing. So TiExec evaluates a filter over
//! the known values. Where the filter branches on an unknown value, TiExec follows both branches. The
//! result is the most severe answer that any branch reaches; it is never milder than the kernel's.
//!
//! Jumps only go forward, so one pass over a filter is enough. Where two branches meet, a value on
//! which they differ becomes unknown.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

/// The most instructions a filter can have (`BPF_MAXINSNS`).
const MAX_LEN: usize = 4096;
/// `BPF_MEMWORDS`.
const MEMORY: usize = 16;
/// Words of `struct seccomp_data`: number, architecture, instruction pointer, six arguments.
const DATA_WORDS: usize = 16;
const WORD: usize = size_of::<u32>();

/// `struct sock_filter`: one instruction in the kernel's form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Instruction {
    /// The operation.
    pub code: u16,
    /// `jt`: how many instructions to skip if the test holds.
    pub jump_true: u8,
    /// `jf`: how many to skip if not.
    pub jump_false: u8,
    /// `k`: the constant.
    pub constant: u32,
}

/// Why a list of instructions is not a valid filter. The kernel would refuse to install such a list, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BadFilter {
    /// No instruction, or too many.
    #[error("a filter of {0} instructions")]
    Length(usize),
    /// An instruction that seccomp does not have.
    #[error("instruction {at} of the filter has the unknown code {code:#x}")]
    Code {
        /// Its index.
        at: usize,
        /// Its code.
        code: u16,
    },
    /// An instruction whose constant is out of range, or a jump beyond the end.
    #[error("instruction {0} of the filter is out of range")]
    Range(usize),
    /// The last instruction does not return.
    #[error("the filter does not end by returning")]
    NoReturn,
}

/// The known part of a 64-bit value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// The value itself.
    Is(u64),
    /// The value is below 2³².
    Small,
    /// Nothing is known.
    Any,
}

impl Value {
    /// Returns whether the value can be `value`.
    pub const fn covers(self, value: u64) -> bool {
        match self {
            Self::Is(known) => known == value,
            Self::Small => value >> 32 == 0,
            Self::Any => true,
        }
    }

    /// Returns the lower and the upper half, in this order as on every architecture that TiExec supports.
    const fn halves(self) -> [Option<u32>; 2] {
        match self {
            Self::Is(known) => [Some(known as u32), Some((known >> 32) as u32)],
            Self::Small => [None, Some(0)],
            Self::Any => [None, None],
        }
    }
}

/// The known part of a system call: `struct seccomp_data`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallData {
    /// Its number.
    pub number: u32,
    /// Its architecture (`AUDIT_ARCH_…`, `<linux/audit.h>`).
    pub architecture: u32,
    /// The address behind the instruction that makes the call.
    pub instruction_pointer: Value,
    /// Its arguments.
    pub args: [Value; 6],
}

impl CallData {
    fn words(&self) -> [Option<u32>; DATA_WORDS] {
        let mut words = [None; DATA_WORDS];
        words[0] = Some(self.number);
        words[1] = Some(self.architecture);
        words[2..4].copy_from_slice(&self.instruction_pointer.halves());
        for (pair, arg) in words[4..].chunks_exact_mut(2).zip(self.args) {
            pair.copy_from_slice(&arg.halves());
        }
        words
    }
}

/// The return value of a filter: an action in the upper half, data for it in the lower. The more severe
/// value is the greater one, and prevails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer(u32);

impl Answer {
    /// `SECCOMP_RET_ALLOW`: the filter does not object.
    pub const ALLOW: Self = Self(0x7fff_0000);
    /// `SECCOMP_RET_KILL_PROCESS`: the most severe answer.
    pub const KILL_PROCESS: Self = Self(0x8000_0000);

    /// Makes an answer from a filter's return value.
    pub const fn new(returned: u32) -> Self {
        Self(returned)
    }

    const fn action(self) -> i32 {
        (self.0 & 0xffff_0000).cast_signed()
    }

    /// Returns whether the kernel makes the call without asking any process: `SECCOMP_RET_ALLOW`,
    /// `SECCOMP_RET_LOG`.
    pub const fn is_allowed(self) -> bool {
        matches!(self.action(), 0x7fff_0000 | 0x7ffc_0000)
    }
}

impl Ord for Answer {
    /// Orders as `seccomp_run_filters` does in the kernel's `kernel/seccomp.c`: by the action as a signed
    /// number, the lowest prevails.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.action(), other.0).cmp(&(self.action(), self.0))
    }
}

impl PartialOrd for Answer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Answer {
    /// Says what happens to the call.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 >> 16 {
            0x7fff => f.write_str("allowed"),
            0x7ffc => f.write_str("allowed and logged"),
            0x7ff0 => f.write_str("left to a tracer"),
            0x7fc0 => f.write_str("left to another process"),
            0x0005 => write!(f, "answered with error {}", self.0 & 0xffff),
            0x0003 => f.write_str("answered with SIGSYS"),
            0x0000 => f.write_str("the end of the thread"),
            _ => f.write_str("the end of the process"),
        }
    }
}

/// One filter, checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter(Vec<Op>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Register {
    A,
    X,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Constant(u32),
    Data(usize),
    Memory(usize),
    Register(Register),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Or,
    And,
    Xor,
    ShiftLeft,
    ShiftRight,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Test {
    Equal,
    Greater,
    GreaterOrEqual,
    AnyBit,
}

/// An instruction; jumps hold the index of their target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Load(Register, Source),
    Store(Register, usize),
    Compute(Arithmetic, Source),
    Negate,
    Jump(usize),
    Branch { test: Test, with: Source, yes: usize, no: usize },
    Return(Source),
}

impl Filter {
    /// Checks a filter as the kernel does (`bpf_check_classic`, `seccomp_check_filter`).
    ///
    /// # Errors
    /// [`BadFilter`]: the filter's first defect.
    pub fn new(instructions: &[Instruction]) -> Result<Self, BadFilter> {
        let len = instructions.len();
        if len == 0 || len > MAX_LEN {
            return Err(BadFilter::Length(len));
        }
        let ops: Vec<Op> = instructions
            .iter()
            .enumerate()
            .map(|(at, instruction)| decode(at, *instruction, len))
            .collect::<Result<_, _>>()?;
        match ops.last() {
            Some(Op::Return(_)) => Ok(Self(ops)),
            _ => Err(BadFilter::NoReturn),
        }
    }

    /// Returns the most severe answer that a call can get, by what is known of the call.
    pub fn answer(&self, call: &CallData) -> Answer {
        let data = call.words();
        let mut worst = Answer::ALLOW;
        // The kernel clears both registers first.
        let start = State { a: Some(0), x: Some(0), memory: [None; MEMORY] };
        let mut ahead = BTreeMap::from([(0, start)]);
        while let Some((mut at, mut state)) = ahead.pop_first() {
            // Follow this way alone until another way lies before its next instruction, or at it.
            while let Some(next) = self.step(at, &mut state, &data, &mut worst, &mut ahead) {
                if ahead.first_key_value().is_none_or(|(&first, _)| next < first) {
                    at = next;
                } else {
                    meet(&mut ahead, next, state);
                    break;
                }
            }
        }
        worst
    }

    /// Follows one instruction; returns the next one. If two are possible, adds the other to `ahead`.
    fn step(
        &self,
        at: usize,
        state: &mut State,
        data: &[Option<u32>; DATA_WORDS],
        worst: &mut Answer,
        ahead: &mut BTreeMap<usize, State>,
    ) -> Option<usize> {
        match self.0[at] {
            Op::Load(Register::A, from) => state.a = state.get(from, data),
            Op::Load(Register::X, from) => state.x = state.get(from, data),
            Op::Store(Register::A, word) => state.memory[word] = state.a,
            Op::Store(Register::X, word) => state.memory[word] = state.x,
            Op::Compute(how, with) => {
                let with = state.get(with, data);
                if how == Arithmetic::Divide && matches!(with, None | Some(0)) {
                    // A division by zero ends the filter with 0.
                    *worst = (*worst).max(Answer::new(0));
                    if with == Some(0) {
                        return None;
                    }
                }
                state.a = state.a.zip(with).and_then(|(a, with)| compute(how, a, with));
            }
            Op::Negate => state.a = state.a.map(u32::wrapping_neg),
            Op::Jump(target) => return Some(target),
            Op::Branch { test, with, yes, no } => {
                let known = state.a.zip(state.get(with, data));
                return Some(match known.map(|(a, b)| holds(test, a, b)) {
                    Some(true) => yes,
                    Some(false) => no,
                    None => {
                        meet(ahead, yes, *state);
                        no
                    }
                });
            }
            Op::Return(what) => {
                let answer = state.get(what, data).map_or(Answer::KILL_PROCESS, Answer::new);
                *worst = (*worst).max(answer);
                return None;
            }
        }
        Some(at + 1)
    }
}

/// Adds a way that continues at `at`, and joins it with a way that is there already.
fn meet(ahead: &mut BTreeMap<usize, State>, at: usize, state: State) {
    ahead.entry(at).and_modify(|known| *known = known.joined(&state)).or_insert(state);
}

/// Returns the most severe answer that a call can get from all of a thread's filters.
pub fn answer(filters: &[Filter], call: &CallData) -> Answer {
    filters.iter().map(|filter| filter.answer(call)).max().unwrap_or(Answer::ALLOW)
}

/// The values that are known when an instruction is reached.
#[derive(Clone, Copy)]
struct State {
    a: Option<u32>,
    x: Option<u32>,
    memory: [Option<u32>; MEMORY],
}

impl State {
    fn get(&self, from: Source, data: &[Option<u32>; DATA_WORDS]) -> Option<u32> {
        match from {
            Source::Constant(value) => Some(value),
            Source::Data(word) => data[word],
            Source::Memory(word) => self.memory[word],
            Source::Register(Register::A) => self.a,
            Source::Register(Register::X) => self.x,
        }
    }

    fn joined(&self, other: &Self) -> Self {
        let both = |one: Option<u32>, two: Option<u32>| one.filter(|_| one == two);
        let mut memory = self.memory;
        for (one, two) in memory.iter_mut().zip(other.memory) {
            *one = both(*one, two);
        }
        Self { a: both(self.a, other.a), x: both(self.x, other.x), memory }
    }
}

/// Returns `None` where kernels differ: for a shift by as many bits as a word has, or more.
fn compute(how: Arithmetic, a: u32, b: u32) -> Option<u32> {
    Some(match how {
        Arithmetic::Add => a.wrapping_add(b),
        Arithmetic::Subtract => a.wrapping_sub(b),
        Arithmetic::Multiply => a.wrapping_mul(b),
        Arithmetic::Divide => return a.checked_div(b),
        Arithmetic::Or => a | b,
        Arithmetic::And => a & b,
        Arithmetic::Xor => a ^ b,
        Arithmetic::ShiftLeft => return a.checked_shl(b),
        Arithmetic::ShiftRight => return a.checked_shr(b),
    })
}

fn holds(test: Test, a: u32, b: u32) -> bool {
    match test {
        Test::Equal => a == b,
        Test::Greater => a > b,
        Test::GreaterOrEqual => a >= b,
        Test::AnyBit => a & b != 0,
    }
}

/// The codes are those of `<linux/bpf_common.h>`, put together.
fn decode(at: usize, instruction: Instruction, len: usize) -> Result<Op, BadFilter> {
    let Instruction { code, jump_true, jump_false, constant } = instruction;
    let range = || BadFilter::Range(at);
    let size = u32::try_from(DATA_WORDS * WORD).unwrap_or(0);
    let memory = || usize::try_from(constant).ok().filter(|&word| word < MEMORY).ok_or_else(range);
    let data = || {
        let word = usize::try_from(constant).ok().filter(|offset| offset % WORD == 0);
        word.map(|offset| offset / WORD).filter(|&word| word < DATA_WORDS).ok_or_else(range)
    };
    // BPF_K or BPF_X.
    let with = match code & 0x08 {
        0 => Source::Constant(constant),
        _ => Source::Register(Register::X),
    };
    let jump = |by: u32| {
        let to = usize::try_from(by).ok().and_then(|by| (at + 1).checked_add(by));
        to.filter(|&to| to < len).ok_or_else(range)
    };
    let branch = |test| {
        let (yes, no) = (jump(jump_true.into())?, jump(jump_false.into())?);
        Ok(Op::Branch { test, with, yes, no })
    };
    let shift = |how| match with {
        Source::Constant(by) if by >= u32::BITS => Err(range()),
        _ => Ok(Op::Compute(how, with)),
    };
    Ok(match code {
        0x00 => Op::Load(Register::A, Source::Constant(constant)),
        0x01 => Op::Load(Register::X, Source::Constant(constant)),
        0x20 => Op::Load(Register::A, Source::Data(data()?)),
        0x60 => Op::Load(Register::A, Source::Memory(memory()?)),
        0x61 => Op::Load(Register::X, Source::Memory(memory()?)),
        0x80 => Op::Load(Register::A, Source::Constant(size)),
        0x81 => Op::Load(Register::X, Source::Constant(size)),
        0x02 => Op::Store(Register::A, memory()?),
        0x03 => Op::Store(Register::X, memory()?),
        0x04 | 0x0c => Op::Compute(Arithmetic::Add, with),
        0x14 | 0x1c => Op::Compute(Arithmetic::Subtract, with),
        0x24 | 0x2c => Op::Compute(Arithmetic::Multiply, with),
        0x34 if constant == 0 => return Err(range()),
        0x34 | 0x3c => Op::Compute(Arithmetic::Divide, with),
        0x44 | 0x4c => Op::Compute(Arithmetic::Or, with),
        0x54 | 0x5c => Op::Compute(Arithmetic::And, with),
        0xa4 | 0xac => Op::Compute(Arithmetic::Xor, with),
        0x64 | 0x6c => shift(Arithmetic::ShiftLeft)?,
        0x74 | 0x7c => shift(Arithmetic::ShiftRight)?,
        0x84 => Op::Negate,
        0x05 => Op::Jump(jump(constant)?),
        0x15 | 0x1d => branch(Test::Equal)?,
        0x25 | 0x2d => branch(Test::Greater)?,
        0x35 | 0x3d => branch(Test::GreaterOrEqual)?,
        0x45 | 0x4d => branch(Test::AnyBit)?,
        0x06 => Op::Return(Source::Constant(constant)),
        0x16 => Op::Return(Source::Register(Register::A)),
        0x07 => Op::Load(Register::X, Source::Register(Register::A)),
        0x87 => Op::Load(Register::A, Source::Register(Register::X)),
        _ => return Err(BadFilter::Code { at, code }),
    })
}
