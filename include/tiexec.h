/* libtiexec: the text of the calling program on huge pages, put there by itself. See tiexec_self(3).
   `cargo xtask header` makes this file of crates/self/src/abi.rs. */

#ifndef TIEXEC_H
#define TIEXEC_H

#include <stddef.h>
#include <stdint.h>

// The options of a call. All zero means the defaults.
struct tiexec_options {
    // `sizeof(struct tiexec_options)`, or 0 for the defaults.
    size_t size;
    // Settings as in TIEXEC of tiexec(1), such as `"edges=pad,deadline=1s"`, or NULL.
    const char *settings;
};

// How a call went.
struct tiexec_result {
    // Set by the caller: `sizeof(struct tiexec_result)`.
    size_t size;
    // Bytes of executable text that files of this process have. After a revert: bytes of it that were in copies.
    uint64_t text_bytes;
    // Bytes of that text which the kernel maps by huge pages now.
    uint64_t huge_bytes;
    // Bytes of that text which are in copies of this process alone.
    uint64_t copied_bytes;
    // Why text that was to become huge did not, as reports name it, such as `"no_huge_page"`; else empty.
    char reason[32];
    // The same in words.
    char detail[472];
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Puts the text of the calling process, that of its program and of its shared objects, onto huge pages. Other threads go on,
// also in that text. `options` and `result` may be NULL.
//
// Returns 0 if all of the text that can become huge is; else a negative error number, and `result` says why. The text
// that did not become huge is as it was.
int tiexec_self(const struct tiexec_options *options,
                struct tiexec_result *result);

// Puts the files' own text back. `result` may be NULL.
//
// Returns 0 if nothing is left in copies, or on page cache that was mapped more widely; else a negative error number.
int tiexec_self_revert(struct tiexec_result *result);

// Writes to `fd` how much of the text is huge, file by file: a table, or one line of JSON if `json` is not 0.
//
// Returns 0 or a negative error number.
int tiexec_self_report(int fd, int json);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TIEXEC_H */
