//! `tiexecctl store`: manages the image store.

mod add;
mod list;
mod prune;
mod remove;
mod setup;
mod verify;

use tiexec_core::escape::AsShown;
use tiexec_core::skip::SkipReason;
use tiexec_remap::Failure;
use tiexec_remap::store::Store;
use tiexec_remap::store::directory::{Directory, SYSTEM};

use super::{cannot, pages, print};
use crate::options::StoreCommand;
use crate::stdio::warn;

pub(super) fn run(command: StoreCommand) -> u8 {
    match command {
        StoreCommand::Setup { size, unit } => setup::run(size, unit),
        StoreCommand::Add { files, json } => add::run(&files, json),
        StoreCommand::List { json } => list::run(json),
        StoreCommand::Prune { all_unused, json } => prune::run(all_unused, json),
        StoreCommand::Remove { files, json } => remove::run(&files, json),
        StoreCommand::Unset => setup::undo(),
        StoreCommand::Verify { json } => verify::run(json),
        StoreCommand::Path => path(),
    }
}

/// Returns every store that this process can read.
fn all(doing: &str) -> Result<Vec<Directory>, u8> {
    let found = Directory::all().map_err(|failure| cannot(doing, &failure))?;
    left_out(&found.refused);
    Ok(found.usable)
}

/// Warns about the stores that are ignored while others are used.
fn left_out(refused: &[Failure]) {
    for failure in refused {
        warn(format_args!("one image store is left out: {failure}"));
    }
}

/// Opens the stores in which images can be built for this user.
fn own(doing: &str) -> Result<Store, u8> {
    let pages = pages(doing)?;
    let store = Store::open_for_this_user(pages).map_err(|failure| cannot(doing, &failure))?;
    let store = store.ok_or_else(|| none(doing))?;
    left_out(store.refused());
    Ok(store)
}

fn none(doing: &str) -> u8 {
    let own = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(_) => "not a tmpfs that allows execution",
        None => "not set",
    };
    let why = format!("{SYSTEM} is not set up, and XDG_RUNTIME_DIR is {own}");
    cannot(doing, &Failure::new(SkipReason::NoStore, why))
}

fn path() -> u8 {
    let doing = "name a store";
    match own(doing) {
        Ok(store) => match store.path() {
            Some(path) => print(&format!("{}\n", path.shown())),
            None => none(doing),
        },
        Err(status) => status,
    }
}
