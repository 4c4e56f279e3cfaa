# TiExec: `make demo` sets up and shows it on a real program; `make test` sets up and passes the tests.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
PODMAN ?= podman

# rustup's default place, for shells whose PATH does not have it.
export PATH := $(PATH):$(HOME)/.cargo/bin

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# The checkout itself may lie anywhere: its paths here are relative.
ifneq ($(words $(TARGET_DIR)),1)
$(error cannot build in CARGO_TARGET_DIR=$(TARGET_DIR): make takes a blank for the end of a name; fix: choose a directory without blanks)
endif
DIST := $(TARGET_DIR)/dist
PROGRAMS := tiexec tiexecctl tiexecd
FEATURES := --features tiexec/fault-injection

# Asked for when a recipe runs: `make demo` may have to install rustc first.
HOST = $(shell PATH='$(PATH)' rustc -vV | sed -n 's/^host: //p')
# Static, so that it starts in about the time of the exec that it stands before. A static PIE would relocate itself on
# each start; only x86-64 is known to build well without. --target keeps these flags away from proc-macros.
STATIC = -C target-feature=+crt-static $(if $(filter x86_64-%,$(HOST)),-C relocation-model=static)

SOURCES := $(shell find Cargo.toml Cargo.lock crates xtask docs/man systemd -type f 2>/dev/null)

BINDIR = $(DESTDIR)$(PREFIX)/bin
SHAREDIR = $(DESTDIR)$(PREFIX)/share
UNITDIR = $(DESTDIR)$(PREFIX)/lib/systemd/system
USERUNITDIR = $(DESTDIR)$(PREFIX)/lib/systemd/user
LIBDIR = $(DESTDIR)$(PREFIX)/lib
INCLUDEDIR = $(DESTDIR)$(PREFIX)/include

.PHONY: all programs lib demo test set-up test-programs guest tests lint soak vm-test k8s-test tools-test upgrade-test roots-test docs-test image bench man completions install uninstall clean

# All that `make install` installs, so that `make && sudo make install` needs no cargo as root.
all: programs lib man completions

programs: $(addprefix $(DIST)/,$(PROGRAMS))

$(addprefix $(DIST)/,$(PROGRAMS)) &: $(SOURCES)
	RUSTFLAGS="$(strip $(RUSTFLAGS) $(STATIC))" $(CARGO) build --release --locked --package tiexec --target $(HOST)
	install -d $(DIST)
	install -m 755 $(addprefix $(TARGET_DIR)/$(HOST)/release/,$(PROGRAMS)) $(DIST)

# libtiexec, as scripts/libtiexec lays it out: for size, and not static. With an rlib beside them, cargo would not optimise these two
# across crates: the library would be a quarter larger.
lib: $(DIST)/lib

$(DIST)/lib: $(SOURCES) include/tiexec.h scripts/libtiexec
	$(CARGO) rustc --profile library --locked --package tiexec-self --crate-type cdylib,staticlib
	STRIP=yes scripts/libtiexec $(TARGET_DIR)/library $@ $(PREFIX)
	touch $@

demo:
	scripts/setup run
	$(MAKE) --no-print-directory programs
	scripts/demo --bin $(DIST)

# An attach and launches with an older kernel, and the tests of settings that a whole machine would feel: these run nowhere else.
SMOKE_TESTS := attach::manual::attach_makes_text_huge attach::limits::no_overcommit \
	fail_open::hardened::thp_never fail_open::hardened::yama fail_open::resources::shmem_deny fail_open::resources::strict_overcommit \
	fail_open::resources::thp_never hostile::targets::one_of_a_cgroup hostile::targets::one_that_a_cgroup_v2 \
	launch::counted::a_limit_of_the_cgroup

# Packages are fetched beside the build, which needs no more of them than the demo. The guest runs the programs that the tests run, beside
# the lints and the tests: an emulator and tests that wait share the processors. So all are built before: cargo would replace a program
# that the guest has open.
test:
	scripts/setup run
	$(MAKE) --no-print-directory --jobs=2 set-up test-programs
	$(MAKE) --no-print-directory --jobs=2 guest tests

# Without make's jobserver: make does not pass its descriptors to these.
ALONE := env -u MAKEFLAGS -u MFLAGS

set-up:
	$(ALONE) scripts/setup test

test-programs:
	$(ALONE) $(CARGO) test --no-run --workspace $(FEATURES)

lint: CARGO := $(ALONE) $(CARGO)

# Runs the xtask of test-programs. `cargo xtask` and `cargo build` would build it and its libraries once more, with other features.
guest:
	$(ALONE) $(TARGET_DIR)/debug/xtask vm-test --arch x86_64 --kernel 6.1 $(SMOKE_TESTS)

tests: lint
	$(ALONE) scripts/tests

# The long form of the tests at random moments and of those at each place of a fault: TIEXEC_TEST_ROUNDS rounds of the first, and
# each place with each kind of program of the others. Takes hours.
soak: export TIEXEC_TEST_ROUNDS ?= 300
soak:
	scripts/setup test
	scripts/tests --profile soak

lint:
	$(CARGO) fmt --all --check
	if command -v cargo-clippy >/dev/null; then \
		$(CARGO) clippy --workspace --all-targets $(FEATURES),tiexec/kubernetes -- -D warnings; \
	else \
		echo "SKIP clippy: this toolchain has no cargo-clippy"; \
	fi
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items $(FEATURES),tiexec/kubernetes

# The matrix of docs/KERNELS.md: each kernel on ext4, and two of them on xfs. Takes hours; two of the kernels are compiled first.
vm-test:
	scripts/setup vm
	$(CARGO) xtask vm-test --record --disk ext4
	$(CARGO) xtask vm-test --record --disk xfs --arch x86_64 --kernel 6.12 --kernel 7.2
	$(CARGO) xtask kernels

# The agent on a Kubernetes node, in namespaces of this machine. The first run builds Kubernetes: ten minutes.
k8s-test:
	scripts/setup k8s
	$(CARGO) xtask k8s-test --record

# What debuggers, profilers and crash handlers say of a program in huge pages. Makes the guide's page of tools.
tools-test: programs
	scripts/setup tools
	$(CARGO) xtask tools-test --record --programs $(DIST)

# Upgrades from the packages of an earlier version, and back: COMMIT=… is another one than 0.1. Builds it first: some minutes.
upgrade-test:
	scripts/setup test
	scripts/upgrade-test $(COMMIT)

# The tests of Debian's package in new roots of Debian 12, Debian 13 and Ubuntu 24.04: RELEASES=trixie is one of them. Downloads 150 MiB for each.
roots-test:
	scripts/setup test
	$(CARGO) xtask roots-test $(RELEASES)

# Each command block of README.md and of the guide, on real programs: PAGES="systemd go" are two pages.
docs-test:
	scripts/setup test
	$(CARGO) xtask docs-test $(PAGES)

# A container image of the static programs, where tiexecd knows pods of Kubernetes. The same programs give the same digest.
# ARCH=aarch64 builds it for another processor (scripts/setup vm), with the tag tiexec:latest-aarch64.
image:
	$(CARGO) xtask context $(addprefix --arch=,$(ARCH)) $(TARGET_DIR)/image$(addprefix -,$(ARCH))
	$(PODMAN) build --timestamp=0 $(addprefix --arch=,$(patsubst x86_64,amd64,$(patsubst aarch64,arm64,$(ARCH)))) \
		--file deploy/container/Containerfile --tag tiexec:latest$(addprefix -,$(ARCH)) $(TARGET_DIR)/image$(addprefix -,$(ARCH))

bench: programs
	for script in launch exec_test memory coverage follow; do \
		echo "== bench/$$script" && bench/$$script --tiexec $(DIST)/tiexec --dir $(DIST) || exit; \
		echo; \
	done
	echo "== bench/advise" && bench/advise --tiexec $(DIST)/tiexec
	echo "== bench/store" && bench/store --tiexec $(DIST)/tiexec

man: $(DIST)/man
completions: $(DIST)/completions

$(DIST)/man $(DIST)/completions: $(SOURCES)
	rm -rf $@ $@.new
	install -d $(DIST)
	$(CARGO) run --quiet --package xtask -- $(notdir $@) $@.new
	mv $@.new $@

install: all
	install -d $(BINDIR) $(LIBDIR)/pkgconfig $(INCLUDEDIR) $(UNITDIR) $(UNITDIR)-preset $(USERUNITDIR) $(SHAREDIR)/man/man1 $(SHAREDIR)/man/man3 $(SHAREDIR)/man/man5 $(SHAREDIR)/man/man8 $(SHAREDIR)/doc/tiexec \
		$(SHAREDIR)/bash-completion/completions $(SHAREDIR)/zsh/site-functions $(SHAREDIR)/fish/vendor_completions.d
	install -m 755 $(addprefix $(DIST)/,$(PROGRAMS)) $(BINDIR)
	install -m 644 $(DIST)/lib/libtiexec.so.1 $(DIST)/lib/libtiexec.a $(LIBDIR)
	ln -sf libtiexec.so.1 $(LIBDIR)/libtiexec.so
	install -m 644 $(DIST)/lib/tiexec.h $(INCLUDEDIR)
	sed 's,^prefix=.*,prefix=$(PREFIX),' $(DIST)/lib/tiexec.pc >$(LIBDIR)/pkgconfig/tiexec.pc
	chmod 644 $(LIBDIR)/pkgconfig/tiexec.pc
	install -m 644 $(DIST)/man/tiexec.1 $(SHAREDIR)/man/man1
	install -m 644 $(DIST)/man/tiexec_self.3 $(SHAREDIR)/man/man3
	install -m 644 $(DIST)/man/tiexec.conf.5 $(SHAREDIR)/man/man5
	install -m 644 $(DIST)/man/tiexecctl.8 $(DIST)/man/tiexecd.8 $(SHAREDIR)/man/man8
	for unit in system/tiexecd system/tiexec@ user/tiexec@; do \
		installed=$(DESTDIR)$(PREFIX)/lib/systemd/$$unit.service && \
		sed 's,/usr/bin/tiexec,$(PREFIX)/bin/tiexec,' systemd/$${unit#system/}.service >$$installed && \
		chmod 644 $$installed || exit; \
	done
	install -m 644 systemd/80-tiexec.preset $(UNITDIR)-preset
	for program in $(PROGRAMS); do \
		install -m 644 $(DIST)/completions/$$program.bash $(SHAREDIR)/bash-completion/completions/$$program && \
		install -m 644 $(DIST)/completions/_$$program $(SHAREDIR)/zsh/site-functions && \
		install -m 644 $(DIST)/completions/$$program.fish $(SHAREDIR)/fish/vendor_completions.d || exit; \
	done
	install -m 644 LICENSE $(SHAREDIR)/doc/tiexec

uninstall:
	for program in $(PROGRAMS); do \
		rm -f $(BINDIR)/$$program $(SHAREDIR)/bash-completion/completions/$$program \
			$(SHAREDIR)/zsh/site-functions/_$$program $(SHAREDIR)/fish/vendor_completions.d/$$program.fish || exit; \
	done
	rm -f $(LIBDIR)/libtiexec.so $(LIBDIR)/libtiexec.so.1 $(LIBDIR)/libtiexec.a $(LIBDIR)/pkgconfig/tiexec.pc \
		$(INCLUDEDIR)/tiexec.h $(SHAREDIR)/man/man3/tiexec_self.3
	rm -f $(SHAREDIR)/man/man1/tiexec.1 $(SHAREDIR)/man/man5/tiexec.conf.5 $(SHAREDIR)/man/man8/tiexecctl.8 \
		$(SHAREDIR)/man/man8/tiexecd.8 $(UNITDIR)/tiexecd.service $(UNITDIR)/tiexec@.service $(USERUNITDIR)/tiexec@.service \
		$(UNITDIR)-preset/80-tiexec.preset
	rm -rf $(SHAREDIR)/doc/tiexec

clean:
	$(CARGO) clean
