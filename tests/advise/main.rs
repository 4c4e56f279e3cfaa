//! `tiexecctl advise`, `bench`, `report` and `--max-huge-pages`: their measurements of programs, and their conclusions.

mod bench;
mod budget;
mod findings;
mod real_programs;
mod report_page;
mod ways;
