//! `cargo run --package tiexec-self --example huge`

use tiexec_self::Settings;

fn main() {
    let mut settings = Settings::default();
    settings.take_setting("edges", "aggressive").expect("a setting of tiexec(1)");
    // The program continues in any case.
    match tiexec_self::attach(&settings) {
        Ok(report) => {
            let (huge, text) = (report.huge_bytes >> 10, report.text_bytes >> 10);
            println!("{huge} of {text} KiB of text are on huge pages");
        }
        Err(why) => eprintln!("text stays on base pages: {}: {}", why.reason, why.detail),
    }
}
