//! `/proc/TID/sched`: what the scheduler knows of a thread (`proc_sched_show_task`, `kernel/sched/debug.c`). Only kernels with
//! CONFIG_SCHED_DEBUG, or since Linux 6.15, have it.

/// Returns when the thread last ran (`se.exec_start`), by the clock of its processor, in microseconds. Clocks of different
/// processors differ.
pub fn last_ran(text: &[u8]) -> Option<u64> {
    let line =
        text.split(|&byte| byte == b'\n').find(|line| line.starts_with(b"se.exec_start "))?;
    let value = line.rsplit(|&byte| byte == b' ').next()?;
    let (millis, fraction) = std::str::from_utf8(value).ok()?.split_once('.')?;
    // The kernel prints six digits: nanoseconds.
    let nanos: u64 = fraction.parse().ok().filter(|_| fraction.len() == 6)?;
    millis.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(nanos / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_kernel() {
        let text = b"sleep (7, #threads: 1)\n-----\nse.exec_start                                :       6388290.548985\nse.vruntime : 1.5\n";
        assert_eq!(last_ran(text), Some(6_388_290_548));
        for other in [
            &b""[..],
            b"se.exec_start : 12\n",
            b"se.exec_start : x.548985\n",
            b"se.exec_start : 1.5\n",
        ] {
            assert_eq!(last_ran(other), None, "{:?}", String::from_utf8_lossy(other));
        }
    }
}
