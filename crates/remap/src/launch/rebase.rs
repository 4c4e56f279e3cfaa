//! Moves a position-independent program at its exec stop, so that its text is congruent.
//!
//! The program has not run yet. Its address is known only to the kernel, to two entries of the auxiliary vector,
//! and, in a static program, to the program counter. The move has three steps:
//!
//! 1. The program maps its segments at the better place, as the kernel would have mapped them there. Moving the old
//!    mappings would leave `perf record` without names.
//! 2. The two entries, the program counter and the kernel's record change.
//! 3. The program unmaps the old mappings.
//!
//! If TiExec dies, the program survives at each step: while both places are mapped, each is whole. Before the
//! change, the way home unmaps the new place. After it, the way home finishes the move. During the change it does
//! neither.

use tiexec_core::addr::{AddrRange, PageSize, RemoteAddr};
use tiexec_core::elf::LoadSegment;
use tiexec_core::proc::auxv::{AT_ENTRY, AT_PHDR};
use tiexec_core::proc::maps::Vma;
use tiexec_core::proc::stat::{self, Layout};
use tiexec_core::rebase::{MainImage, Rebase};
use tiexec_core::skip::FailureKind;
use tiexec_sys::procfs::ProcDir;
use tiexec_tracee::Failure;
use tiexec_tracee::TraceError;
use tiexec_tracee::remote::{self, Placing};
use tiexec_tracee::session::Session;

use crate::protection;

/// Moves the program, held at its exec stop, as `plan` says. `auxv` is `/proc/PID/auxv` as it was read at this
/// stop, `base` the base page.
///
/// # Errors
/// The program is at its old place, or gone if the failure says that the tracee ended.
pub(crate) fn rebase(
    session: &mut Session,
    process: &ProcDir,
    image: &MainImage,
    plan: &Rebase,
    auxv: &[u8],
    base: PageSize,
) -> Result<(), Failure> {
    let failed = |what: &str| Failure::new(FailureKind::RebaseFailed, what);
    let layout = process
        .read("stat")
        .map_err(Failure::of(FailureKind::RebaseFailed))
        .and_then(|text| stat::layout(&text).map_err(Failure::of(FailureKind::RebaseFailed)))?;
    let vector = Vector::find(session, auxv)?
        .ok_or_else(|| failed("the auxiliary vector is not where it should be"))?;
    let flip = vector.flip(plan).ok_or_else(|| failed("AT_PHDR or AT_ENTRY is missing"))?;

    let fd = open_itself(session)?;
    session.release_on_the_way_home(remote::munmap(plan.to));
    let mapped = map_anew(session, image, plan, fd, base);
    if let Err(failure) = mapped {
        unmap(session, plan.to)?;
        session.released();
        return Err(failure);
    }

    // Both places are whole now. A way home cannot know which of them the program will use, so it may unmap
    // neither.
    session.released();
    session.install_chain()?;
    let there = |addr| plan.moved(addr).unwrap_or(addr);
    let back = |addr| moved_back(plan, addr);
    if let Err(failure) = flip.make(session, &flip.new, base, there) {
        // A refused change was not made. Write the old bytes all the same.
        session.move_home(back);
        session.install_chain()?;
        session.write(flip.at, &flip.old)?;
        unmap(session, plan.to)?;
        return Err(failure);
    }
    // From here on the way home finishes the move.
    let map = mm_map(&layout, plan, &vector);
    let map = session.keep(&map)?;
    let set_mm = remote::set_mm_map(map, MM_MAP_LEN as u64);
    let unmap_old = remote::munmap(plan.from);
    session.release_on_the_way_home(unmap_old);
    session.release_on_the_way_home(set_mm);
    let answer = session.call(set_mm)?;
    session.released();
    if let Err(error) = answer {
        // The kernel's record still names the old image, and gdb could not read /proc/PID. Move back.
        session.released();
        session.install_chain()?;
        flip.make(session, &flip.old, base, back)?;
        unmap(session, plan.to)?;
        return Err(Failure::of(FailureKind::RebaseFailed)(error));
    }
    // The program is moved. If the kernel does not unmap the old place, that costs only address space.
    let _kept = session.call(unmap_old)?;
    session.released();
    Ok(())
}

/// Returns the address that the byte at `addr` had before the move.
fn moved_back(plan: &Rebase, addr: RemoteAddr) -> RemoteAddr {
    if !plan.to.contains(addr) {
        return addr;
    }
    RemoteAddr::new(plan.from.start().get() + (addr.get() - plan.to.start().get()))
}

/// Has the program open its own executable. The program closes it on its way home.
pub(crate) fn open_itself(session: &mut Session) -> Result<u64, Failure> {
    let path = session.scratch(b"/proc/self/exe\0")?;
    let fd = session
        .call(remote::open("open(/proc/self/exe)", path, 0))?
        .map_err(Failure::of(FailureKind::RebaseFailed))?;
    session.release_on_the_way_home(remote::close(fd));
    Ok(fd)
}

fn unmap(session: &mut Session, range: AddrRange) -> Result<(), Failure> {
    let answer = session.call(remote::munmap(range))?;
    answer.map(drop).map_err(Failure::of(FailureKind::RebaseFailed))
}

/// Maps each piece of the image at its new place, with the contents it has at the old one.
fn map_anew(
    session: &mut Session,
    image: &MainImage,
    plan: &Rebase,
    fd: u64,
    base: PageSize,
) -> Result<(), Failure> {
    for piece in &plan.pieces {
        let Some(to) = plan.moved_range(piece.range) else { continue };
        map(session, piece, to, fd)?;
    }
    for load in &image.loads {
        copy_tail(session, image, plan, load, base)?;
    }
    Ok(())
}

fn map(session: &mut Session, piece: &Vma, to: AddrRange, fd: u64) -> Result<(), Failure> {
    let protection = protection::of(piece);
    let call = if piece.is_file_backed() {
        remote::mmap(to, protection, Placing::AsProgram, fd, piece.file_offset)
    } else {
        remote::mmap_anonymous(to, protection)
    };
    let answer = session.call(call)?;
    answer.map(drop).map_err(Failure::of(FailureKind::RebaseFailed))
}

/// Copies what the kernel wrote into a segment: zeros from the end of its file part to the end of that page, where
/// the bss begins (`padzero`, `fs/binfmt_elf.c`).
fn copy_tail(
    session: &Session,
    image: &MainImage,
    plan: &Rebase,
    load: &LoadSegment,
    base: PageSize,
) -> Result<(), Failure> {
    if !load.write || load.mem_size <= load.file_size || load.file_size == 0 {
        return Ok(());
    }
    let end = load.vaddr.saturating_add(load.file_size).wrapping_add(image.load_bias);
    let from = RemoteAddr::new(end);
    let Some(page_end) = from.align_up(base).filter(|&page_end| page_end != from) else {
        return Ok(());
    };
    let Some(to) = plan.moved(from) else { return Ok(()) };
    let mut tail = vec![0; (page_end.get() - end) as usize];
    session.read(from, &mut tail)?;
    session.write(to, &tail)?;
    Ok(())
}

/// The auxiliary vector as it lies on the program's stack.
struct Vector {
    at: RemoteAddr,
    bytes: Vec<u8>,
}

/// The words of the vector that change, from the first to the last, in one piece.
struct Flip {
    at: RemoteAddr,
    old: Vec<u8>,
    new: Vec<u8>,
}

const WORD: usize = size_of::<u64>();
/// A key and its value.
const ENTRY: usize = 2 * WORD;

impl Vector {
    /// Finds the vector above the arguments and the environment. Its bytes must equal those that the kernel
    /// reports.
    fn find(session: &Session, auxv: &[u8]) -> Result<Option<Self>, TraceError> {
        let used = auxv
            .chunks_exact(ENTRY)
            .position(|entry| entry[..WORD] == [0; WORD])
            .map(|null| (null + 1) * ENTRY);
        let Some(used) = used else { return Ok(None) };
        let mut argc = [0; WORD];
        session.read(session.stack_pointer(), &mut argc)?;
        // argc, its arguments and a null come first. The environment follows, up to its null.
        let words = u64::from_ne_bytes(argc).checked_add(2);
        let environment = words
            .and_then(|words| words.checked_mul(WORD as u64))
            .and_then(|bytes| session.stack_pointer().checked_add(bytes));
        let Some(mut at) = environment else { return Ok(None) };
        let mut word = [1; WORD];
        // The vector follows the environment, so this many bytes can be read from each of its words on.
        let mut chunk = vec![0; used];
        while word != [0; WORD] {
            session.read(at, &mut chunk)?;
            for candidate in chunk.chunks_exact(WORD) {
                word.copy_from_slice(candidate);
                let Some(next) = at.checked_add(WORD as u64) else { return Ok(None) };
                at = next;
                if word == [0; WORD] {
                    break;
                }
            }
        }
        let mut bytes = vec![0; used];
        session.read(at, &mut bytes)?;
        Ok((bytes == auxv[..used]).then_some(Self { at, bytes }))
    }

    /// Computes the change that a move needs.
    fn flip(&self, plan: &Rebase) -> Option<Flip> {
        let value_at = |key: u64| {
            let keys = self.bytes.chunks_exact(ENTRY);
            let index = { keys }.position(|entry| entry[..WORD] == key.to_ne_bytes())?;
            Some(index * ENTRY + WORD)
        };
        let (header, entry) = (value_at(AT_PHDR)?, value_at(AT_ENTRY)?);
        let mut new = self.bytes.clone();
        for at in [header, entry] {
            let word = u64::from_ne_bytes(new[at..at + WORD].try_into().ok()?);
            let moved = plan.moved(RemoteAddr::new(word))?;
            new[at..at + WORD].copy_from_slice(&moved.get().to_ne_bytes());
        }
        let (start, end) = (header.min(entry), header.max(entry) + WORD);
        Some(Flip {
            at: self.at.checked_add(start as u64)?,
            old: self.bytes[start..end].to_vec(),
            new: new[start..end].to_vec(),
        })
    }
}

impl Flip {
    /// Writes `bytes`, `old` or `new`, and moves the program's home as `moved` says. The program never sees a part
    /// of the change, even if this process dies in the middle of it.
    fn make(
        &self,
        session: &mut Session,
        bytes: &[u8],
        base: PageSize,
        moved: impl Fn(RemoteAddr) -> RemoteAddr,
    ) -> Result<(), Failure> {
        let last = RemoteAddr::new(self.at.get() + bytes.len() as u64 - 1);
        let in_one_page = self.at.align_down(base) == last.align_down(base);
        let home_stays = moved(session.program_counter()) == session.program_counter();
        // The new home takes effect with the next call.
        session.move_home(moved);
        if in_one_page && home_stays {
            // Within a page the kernel copies the bytes in one step.
            session.write(self.at, bytes)?;
            return Ok(());
        }
        // If the bytes cross a page, or the program counter must move with them (in a static program), this process
        // could die in between. Let the program copy them itself, on its way to its new home.
        let len = bytes.len() as u64;
        let header = 4 * WORD as u64;
        let scratch = session.scratch(&[0])?;
        let words = [scratch.get() + header, len, self.at.get(), len];
        let mut block: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        block.extend(bytes);
        let scratch = session.scratch(&block)?;
        let pid = session.pid().as_raw_nonzero().get().unsigned_abs();
        let to = RemoteAddr::new(scratch.get() + 2 * WORD as u64);
        let written = session.call(remote::write_within(pid, scratch, to))?;
        match written {
            Ok(count) if count == len => Ok(()),
            Ok(_) => Err(Failure::new(FailureKind::RebaseFailed, "process_vm_writev wrote a part")),
            Err(error) => Err(Failure::of(FailureKind::RebaseFailed)(error)),
        }
    }
}

/// Length of `struct prctl_mm_map` (`include/uapi/linux/prctl.h`).
const MM_MAP_LEN: usize = 13 * WORD;

/// Builds the `struct prctl_mm_map` that tells the kernel where the program is now. The heap is empty, and keeps
/// its address. The other fields are addresses on the stack.
fn mm_map(layout: &Layout, plan: &Rebase, vector: &Vector) -> Vec<u8> {
    // An end may be the first byte after the image.
    let moved = |addr: u64| {
        let offset = addr.wrapping_sub(plan.from.start().get());
        if offset <= plan.from.len() { plan.to.start().get() + offset } else { addr }
    };
    let sizes = vector.bytes.len() as u64 | u64::from(u32::MAX) << 32;
    let words: [u64; 13] = [
        moved(layout.start_code),
        moved(layout.end_code),
        moved(layout.start_data),
        moved(layout.end_data),
        layout.start_brk,
        layout.start_brk,
        layout.start_stack,
        layout.arg_start,
        layout.arg_end,
        layout.env_start,
        layout.env_end,
        vector.at.get(),
        // auxv_size, and no exe_fd.
        sizes,
    ];
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
