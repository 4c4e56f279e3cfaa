//! Commands that work on files: the image store and the page cache.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tiexec_remap::store::setup::Size;

/// The commands of `tiexecctl store`.
#[derive(Subcommand, Clone, Debug)]
pub enum StoreCommand {
    /// Mount the system's image store at /run/tiexec/images, or change its size
    Setup {
        /// How large it may become: 512M, 2G, or a share of the memory such as 10% [default: 10%]
        #[arg(long, value_name = "SIZE")]
        size: Option<Size>,
        /// Change nothing; print a systemd mount unit that does it at every boot
        #[arg(long)]
        unit: bool,
    },
    /// Undo setup: remove all images from /run/tiexec/images, and unmount it
    Unset,
    /// Build the images of files before somebody needs them
    Add {
        /// Programs or shared libraries
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the images, who uses them, and whether their originals are still the same
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove images whose originals are gone or have changed, and files that killed builders left
    Prune {
        /// Also remove every image that no process maps or has open
        #[arg(long)]
        all_unused: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove the images of files; processes that map one keep it until they end
    Remove {
        /// Programs or shared libraries
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Read every image and compare it with what its builder wrote
    Verify {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the directory in which this user's images are built
    Path,
}

/// The options of `tiexecctl warm`.
#[derive(Args, Clone, Debug)]
pub struct Warm {
    /// The programs and shared libraries
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Only show the state; evict nothing, and read only headers
    #[arg(long)]
    pub check: bool,

    /// Also the shared libraries that the files need, as their ld.so lists them
    #[arg(long)]
    pub deps: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Print errors only
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,
}
