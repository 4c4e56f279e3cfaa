//! Limits of minutes, which tests shorten.
//!
//! Only builds with the feature `fault-injection` look at `TIEXEC_TEST_CLOCK=N`, which makes the limits N times shorter.

use std::time::Duration;

/// Returns how long the limit is here.
pub fn limit(usual: Duration) -> Duration {
    usual / divisor()
}

#[cfg(feature = "fault-injection")]
fn divisor() -> u32 {
    let wish = std::env::var("TIEXEC_TEST_CLOCK").ok();
    wish.and_then(|n| n.parse().ok()).filter(|&n| n > 0).unwrap_or(1)
}

#[cfg(not(feature = "fault-injection"))]
fn divisor() -> u32 {
    1
}
