"""Copies of programs whose page cache is as a measurement wants it: in base pages, or in huge folios.

Only ever done to private copies: to make it so, they are evicted first.
"""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

from lib import elf, session

PROT_NONE, PROT_READ = 0, 1
MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_NORESERVE = 0x02, 0x10, 0x20, 0x4000
MADV_RANDOM, MADV_HUGEPAGE = 1, 14
ATTEMPTS = 5  # a machine may reclaim what is idle at any time
MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def _refused(call):
    number = ctypes.get_errno()
    raise OSError(number, f"{call}: {os.strerror(number)}")


class Mapping:
    """A range of a file, beginning with a huge page, mapped readable where huge folios can be PMD-mapped."""

    def __init__(self, file, begin, end, advice):
        pmd = elf.pmd_size()
        self.length = end - begin
        self.room = _libc.mmap(None, self.length + pmd, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        if self.room == MAP_FAILED:
            _refused("mmap")
        self.reserved = self.length + pmd
        self.address = -(-self.room // pmd) * pmd
        if _libc.mmap(self.address, self.length, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, begin) == MAP_FAILED:
            _refused("mmap")
        if _libc.madvise(self.address, self.length, advice) != 0:
            _refused("madvise")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        _libc.munmap(self.room, self.reserved)

    def cached(self):
        """Bytes of it in the page cache, in whatever folios; nothing is read."""
        pages = (ctypes.c_ubyte * (self.length // elf.PAGE))()
        if _libc.mincore(self.address, self.length, pages) != 0:
            _refused("mincore")
        return sum(page & 1 for page in pages) * elf.PAGE

    def huge(self):
        """Touches one byte of each huge page; returns the bytes that are PMD-mapped then."""
        for at in range(0, self.length, elf.pmd_size()):
            ctypes.string_at(self.address + at, 1)
        return elf.huge_bytes("self", [(self.address, self.address + self.length)])


class Copy:
    """A private copy of a program, whose page cache is kept `huge` or in base pages."""

    def __init__(self, program, directory, huge, options):
        self.path = str(Path(directory) / Path(program).name)
        self.is_huge, self.options, self.remade = huge, options, 0
        shutil.copy(program, self.path)
        self.text = elf.text_in_file(self.path)
        self.whole = elf.whole_huge_pages(self.text, elf.pmd_size())
        self.pie = elf.program_headers(self.path)[0]
        with open(self.path, "rb") as file:
            os.fsync(file.fileno())  # what is dirty cannot be evicted
        self._evict()  # written, it is in folios of any size
        self._read_huge() if huge and self.whole else self._read_small()

    def _evict(self):
        with open(self.path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _read_small(self):
        with open(self.path, "rb", buffering=0) as file:
            # Readahead makes large folios, and even huge ones if read_ahead_kb is large. Without readahead the folios
            # are base pages, as after an exec of a file that is not cached.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            while file.read(elf.PAGE):
                pass

    def _read_huge(self):
        if session.ctl_has(self.options, "warm"):
            subprocess.run([session.ctl(self.options), "warm", "-q", self.path], stdout=subprocess.DEVNULL)
        else:
            self._evict()
            with open(self.path, "rb") as file:
                for begin, end in self.whole:
                    with Mapping(file.fileno(), begin, end, MADV_HUGEPAGE) as mapping:
                        mapping.huge()
        self._read_small()  # the rest of the file

    def cached(self):
        """Bytes of the whole file in the page cache, in whatever folios; nothing is read."""
        size = -(-os.path.getsize(self.path) // elf.PAGE) * elf.PAGE
        with open(self.path, "rb") as file, Mapping(file.fileno(), 0, size, MADV_RANDOM) as mapping:
            return mapping.cached()

    def state(self):
        """(bytes of its whole huge pages of text that are cached, bytes of them in huge folios); reads nothing."""
        cached = huge = 0
        with open(self.path, "rb") as file:
            for begin, end in self.whole:
                with Mapping(file.fileno(), begin, end, MADV_RANDOM) as mapping:
                    inside = mapping.cached()
                    cached += inside
                    if inside == end - begin:
                        huge += mapping.huge()
        return cached, huge

    def renew(self, cached):
        """Before a start that changes the page cache: all of it in base pages, or nothing cached. By its new ctime the
        file is another one to tiexec, which evicts a file only a few times in an hour."""
        os.utime(self.path)
        with open(self.path, "rb") as file:
            os.fsync(file.fileno())
        self._evict()
        if cached:
            self._read_small()

    def ensure(self):
        """Sees to it that the page cache is as it is to be; ends the bench if that cannot be had."""
        whole = elf.total(self.whole)
        wanted = (whole, whole if self.is_huge else 0)
        for _ in range(ATTEMPTS):
            found = self.state()
            if found == wanted:
                return
            self.remade += 1
            if self.is_huge:
                self._read_huge()
            else:
                if found[1]:
                    self._evict()
                self._read_small()
        cached, huge = (number // 1024 for number in self.state())
        session.unable(f"{self.path}: {cached} KiB of its {whole // 1024} KiB of text in whole huge pages are cached, {huge} "
                       f"KiB in huge folios, where {wanted[1] // 1024} are wanted: no large folios on this file system, or "
                       f"too little memory; --dir names another")


def how_warmed(options):
    return "tiexecctl warm" if session.ctl_has(options, "warm") else "madvise(MADV_HUGEPAGE), as tiexecctl has no `warm`"
