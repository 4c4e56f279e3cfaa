//! minidump-of PID ADDRESS SYMBOLS: writes a minidump of the process as the crash handlers of Firefox and Sentry do. Prints the
//! module that the minidump has at the address, and walks the main thread's stack as their servers do, with the symbol files
//! below the directory SYMBOLS.
use std::fs::File;

use minidump::{Minidump, MinidumpModuleList, Module};
use minidump_unwind::{Symbolizer, simple_symbol_supplier};
use minidump_writer::minidump_writer::MinidumpWriterConfig;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let mut word = move || words.next().ok_or("minidump-of PID ADDRESS SYMBOLS");
    let pid = word()?.parse()?;
    let at = u64::from_str_radix(word()?.trim_start_matches("0x"), 16)?;
    let symbols = Symbolizer::new(simple_symbol_supplier(vec![word()?.into()]));
    MinidumpWriterConfig::new(pid, pid).write(&mut File::create("minidump")?)?;
    let dump = Minidump::read_path("minidump")?;
    let modules = dump.get_stream::<MinidumpModuleList>()?;
    let module = modules.module_at_address(at).ok_or("no module there")?;
    let id = module.debug_identifier().ok_or("no identifier")?;
    println!("module {} {id}", module.code_file());
    let state = pollster::block_on(minidump_processor::process_minidump(&dump, &symbols))?;
    let thread = state.threads.first().ok_or("no thread")?;
    for frame in &thread.frames {
        println!("frame {}", frame.function_name.as_deref().unwrap_or("?"));
    }
    Ok(())
}
