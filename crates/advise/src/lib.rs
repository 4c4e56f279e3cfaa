//! Whether huge pages pay, and which: values in, values out.
//!
//! Samples of a program ([`samples`]) and what the processor says of its instruction TLB ([`itlb`]) make an [`advice`],
//! a [`heat`] map, and a choice of pages where there is a [`budget`]. Figures of runs with and without make a
//! comparison ([`compare`]). A [`page`] shows all of them. Planning and switching need nothing of this.

#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, reason = "names reach people by tiexec_core::escape only")]

pub mod advice;
pub mod budget;
pub mod canary;
pub mod compare;
pub mod heat;
pub mod itlb;
pub mod page;
pub mod samples;
pub mod sequential;
