//! Our own kernels, for configurations that no kernel of Debian has. They are built once from Debian's source, small,
//! with everything for a guest built in.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;

use super::apt::{Apt, SUITES};
use super::cache::Cache;
use super::{Arch, need, run};

/// The common configuration.
const COMMON: &str = include_str!("../../guest/kernel.config");

/// The kinds: the suffix after the version, and the configuration.
const KINDS: [(&str, &str); 2] = [
    (
        // The page cache of files collapses by MADV_COLLAPSE on any file system. The option is gone from 7.2 on.
        "rothp",
        "CONFIG_TRANSPARENT_HUGEPAGE=y\nCONFIG_TRANSPARENT_HUGEPAGE_MADVISE=y\n\
         CONFIG_READ_ONLY_THP_FOR_FS=y\nCONFIG_HUGETLBFS=y\n",
    ),
    (
        // This kind is for aarch64, like RHEL's kernel-64k. Debian has no such kernel.
        "64k",
        "# CONFIG_ARM64_4K_PAGES is not set\nCONFIG_ARM64_64K_PAGES=y\n\
         CONFIG_TRANSPARENT_HUGEPAGE=y\nCONFIG_TRANSPARENT_HUGEPAGE_MADVISE=y\nCONFIG_HUGETLBFS=y\n",
    ),
];

/// Splits `6.12-rothp` into the version, the kind and its configuration.
pub(super) fn kind(version: &str) -> Option<(&str, &'static str, &'static str)> {
    KINDS.iter().find_map(|(name, config)| {
        let version = version.strip_suffix(name)?.strip_suffix('-')?;
        Some((version, *name, *config))
    })
}

/// Builds a kernel below `dir`, with the layout of Debian's unpacked packages. This takes ten minutes or more.
pub(super) fn build(
    cache: &Cache,
    arch: Arch,
    (version, name, config): (&str, &str, &str),
    release: &str,
    dir: &Path,
) -> Result<()> {
    for tool in ["flex", "bison", "bc"] {
        need(tool, tool)?;
    }
    let place = dir.join("build");
    let unpacked = place.join("package");
    let package = format!("linux-source-{version}");
    Apt::open(cache, arch, &SUITES)?.unpack(std::slice::from_ref(&package), &unpacked)?;
    let tar = unpacked.join(format!("usr/src/{package}.tar.xz"));
    run(Command::new("tar").arg("-xf").arg(tar).arg("-C").arg(&place))?;
    let source = place.join(&package);
    let fragment = place.join("fragment");
    fs::write(&fragment, format!("{COMMON}{config}CONFIG_LOCALVERSION=\"-{name}\"\n"))?;
    let out = place.join("out");
    fs::create_dir_all(&out)?;
    let (its_name, place_of_image, target) = match arch {
        Arch::X86 => ("x86_64", "arch/x86/boot", "bzImage"),
        Arch::Arm => ("arm64", "arch/arm64/boot", "Image"),
    };
    let make = |targets: &[&str]| {
        let mut make = Command::new("nice");
        make.args(["make", "-s", "-C"]).arg(&source);
        make.args([format!("O={}", out.display()), format!("ARCH={its_name}")]);
        if !arch.is_here() {
            make.arg(format!("CROSS_COMPILE={arch}-linux-gnu-"));
        }
        run(make.args(targets).stdout(Stdio::null()))
    };
    make(&["tinyconfig"])?;
    let merge = source.join("scripts/kconfig/merge_config.sh");
    // The script writes to its working directory.
    let mut merge = Command::new(merge);
    merge.args(["-m", "-O"]).args([&out, &out.join(".config"), &fragment]);
    run(merge.current_dir(&out).stdout(Stdio::null()))?;
    make(&["olddefconfig"])?;
    make(&[&format!("-j{}", std::thread::available_parallelism()?), target])?;
    fs::create_dir_all(dir.join("boot"))?;
    fs::create_dir_all(dir.join("lib/modules").join(release))?;
    fs::copy(out.join(place_of_image).join(target), dir.join(format!("boot/vmlinuz-{release}")))?;
    fs::copy(out.join(".config"), dir.join(format!("boot/config-{release}")))?;
    Ok(fs::remove_dir_all(&place)?)
}
