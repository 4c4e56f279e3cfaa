//! `tiexecctl advise`, `bench`, `report` and `--max-huge-pages`: what is measured of programs, and what is concluded.

mod bench;
mod budget;
mod findings;
mod real_programs;
mod report_page;
mod ways;
