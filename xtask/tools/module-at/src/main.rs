//! module-at PID ADDRESS: writes a minidump of the process as the crash handlers of Firefox and Sentry do, and prints the
//! module that the minidump has at the address.
use std::fs::File;

use minidump::{Minidump, MinidumpModuleList, Module};
use minidump_writer::minidump_writer::MinidumpWriterConfig;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let mut word = move || words.next().ok_or("module-at PID ADDRESS");
    let pid = word()?.parse()?;
    let at = u64::from_str_radix(word()?.trim_start_matches("0x"), 16)?;
    MinidumpWriterConfig::new(pid, pid).write(&mut File::create("minidump")?)?;
    let dump = Minidump::read_path("minidump")?;
    let modules = dump.get_stream::<MinidumpModuleList>()?;
    let module = modules.module_at_address(at).ok_or("no module there")?;
    println!("{} {}", module.code_file(), module.debug_identifier().ok_or("no identifier")?);
    Ok(())
}
