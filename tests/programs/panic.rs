//! Panics after a line on stdin. `pad` is 3 MiB of code before these functions, and panic_pad.s, which is linked last, has as much: the
//! functions are in huge pages.

std::arch::global_asm!(".text", ".globl pad", "pad:", ".fill 3 * 1024 * 1024, 1, 0xc3");

unsafe extern "C" {
    fn pad();
    fn last_pad();
}

#[inline(never)]
fn deep(left: u32) -> u32 {
    if left == 0 { panic!("the end") } else { std::hint::black_box(deep(left - 1)) + 1 }
}

fn main() {
    // SAFETY: both return at once.
    unsafe {
        pad();
        last_pad();
    }
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    std::process::exit(deep(2) as i32);
}
