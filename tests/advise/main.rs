//! `tiexecctl advise`, `bench`, `report` and `--max-huge-pages`: measurements of programs, and conclusions from them.

mod bench;
mod budget;
mod findings;
mod real_programs;
mod report_page;
mod scan;
mod ways;
