//! The `#!` line, as the kernel reads it (`fs/binfmt_script.c`).

/// How many bytes of a file the kernel reads for this (`BINPRM_BUF_SIZE`).
pub const PREFIX: usize = 256;

/// How many interpreters may follow each other before exec fails with ELOOP.
pub const MAX_DEPTH: usize = 5;

/// Returns the interpreter that a file with this beginning names. Returns `None` if the file is not a
/// script, or if the kernel would refuse the script (no name, or a name cut off by the prefix).
pub fn interpreter(prefix: &[u8]) -> Option<&[u8]> {
    let prefix = &prefix[..prefix.len().min(PREFIX)];
    let line = prefix.strip_prefix(b"#!")?;
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let line_end = line.iter().position(|&byte| byte == b'\n');
    let line = &line[..line_end.unwrap_or(line.len())];
    let name_at = line.iter().position(|byte| !is_blank(byte))?;
    let name = &line[name_at..];
    let name_end = name.iter().position(|byte| is_blank(byte) || *byte == 0);
    // If the prefix shows no end of the name, the name may be cut off: ENOEXEC.
    if line_end.is_none() && name_end.is_none() && prefix.len() == PREFIX {
        return None;
    }
    let name = &name[..name_end.unwrap_or(name.len())];
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_reads() {
        assert_eq!(interpreter(b"#!/bin/sh\n"), Some(&b"/bin/sh"[..]));
        assert_eq!(interpreter(b"#! \t /usr/bin/env -S node x\n"), Some(&b"/usr/bin/env"[..]));
        assert_eq!(interpreter(b"#!/bin/sh"), Some(&b"/bin/sh"[..]));
        assert_eq!(interpreter(b"#!  \n/bin/sh"), None);
        assert_eq!(interpreter(b"#/bin/sh\n"), None);
        assert_eq!(interpreter(b""), None);
        let mut long = b"#!".to_vec();
        long.resize(400, b'a');
        assert_eq!(interpreter(&long), None);
    }
}
