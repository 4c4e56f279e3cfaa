//! Huge pages of the page cache: how files get into them, and which processes share them.

mod by_itself;
mod cold;
mod collapse;
mod evicted;
mod launch_evicts;
mod package_upgrade;
mod shared;
mod warm_check_deps;
mod warm_file_systems;
mod warm_fragmented;
mod warm_makes_huge;
mod warm_refuses;
