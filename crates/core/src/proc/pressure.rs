//! `/proc/pressure/memory`: the share of time in which tasks waited for memory (`Documentation/accounting/psi.rst`).

/// Returns the percentage of the last ten seconds in which some task waited; `None` if the text does not say.
pub fn some_avg10(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let value = line.split(' ').find_map(|field| field.strip_prefix("avg10="))?;
    value.parse().ok().filter(|share: &f64| share.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_some() {
        let text = b"some avg10=12.50 avg60=1.00 avg300=0.20 total=9\nfull avg10=7.00 avg60=0 avg300=0 total=1\n";
        assert_eq!(some_avg10(text), Some(12.5));
        for odd in [&b""[..], b"full avg10=7.00\n", b"some avg10=x\n", b"some avg10=nan", b"\xff"] {
            assert_eq!(some_avg10(odd), None);
        }
    }
}
