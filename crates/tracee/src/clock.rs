//! What tests change: limits of minutes are shortened, a busy machine gets more time for an answer, and the host of the
//! machine maps huge pages as the test needs it.
//!
//! Only builds with the feature `fault-injection` look at `TIEXEC_TEST_CLOCK=N`, which makes the limits of minutes N times
//! shorter, at `TIEXEC_TEST_ANSWER=N`, which makes the wait for an answer N times longer, at `TIEXEC_TEST_DISK=N`, which
//! makes the disk seem N times slower, and at `TIEXEC_TEST_HOST`.

use std::time::Duration;

/// Returns how long the limit is here.
pub fn limit(usual: Duration) -> Duration {
    usual / factor("TIEXEC_TEST_CLOCK")
}

/// Returns how long to wait here for an answer that usually comes at once.
pub fn answer(usual: Duration) -> Duration {
    usual * factor("TIEXEC_TEST_ANSWER")
}

/// Returns whether the host splits huge pages in this test (`TIEXEC_TEST_HOST=splits` or `whole`); `None` outside of tests.
pub fn planted_host() -> Option<bool> {
    if cfg!(feature = "fault-injection") {
        return std::env::var("TIEXEC_TEST_HOST").ok().map(|host| host == "splits");
    }
    None
}

/// Returns how long a read counts that took this long.
pub fn disk(took: Duration) -> Duration {
    took * factor("TIEXEC_TEST_DISK")
}

#[cfg(feature = "fault-injection")]
fn factor(variable: &str) -> u32 {
    let wish = std::env::var(variable).ok();
    wish.and_then(|n| n.parse().ok()).filter(|&n| n > 0).unwrap_or(1)
}

#[cfg(not(feature = "fault-injection"))]
fn factor(_variable: &str) -> u32 {
    1
}
