//! Records of a perf ring buffer (perf_event_open(2), "Layout of MAP_SHARED"; the comments in
//! `include/uapi/linux/perf_event.h`).

pub mod records;
pub mod samples;

/// Bytes of the header before each record.
pub const HEADER_LEN: usize = 8;

/// Reads the header of a record: the length of the whole record in bytes. `None` for bytes that no
/// kernel writes.
pub fn record_len(header: [u8; HEADER_LEN]) -> Option<usize> {
    let len = usize::from(u16::from_ne_bytes([header[6], header[7]]));
    (len >= HEADER_LEN).then_some(len)
}
