//! Decides whether huge pages pay, and which. All functions map values to values, without input or output.
//!
//! Samples of a program ([`samples`]) and the processor's description of its instruction TLB ([`itlb`]) give an
//! [`advice`], a [`heat`] map and, within a [`budget`], a choice of pages. Figures of runs with and without TiExec give
//! a comparison ([`compare`]). A [`page`] shows all results. Planning and switching do not depend on this crate.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, reason = "see clippy.toml"))]

pub mod advice;
pub mod budget;
pub mod canary;
pub mod compare;
pub mod heat;
pub mod itlb;
pub mod next;
pub mod origin;
pub mod page;
pub mod samples;
pub mod scan;
pub mod sequential;
