"""Where a program's text is: in its file, and in a process that runs it."""

import os
import struct

AT_PHDR, PT_LOAD, PF_X, ET_DYN = 3, 1, 1, 3
HUGE_KEYS = ("AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:")
PAGE = os.sysconf("SC_PAGESIZE")


def pmd_size():
    with open("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") as file:
        return int(file.read())


def program_headers(path):
    """Returns (whether it is position-independent, its phoff, its LOAD segments as dicts); no segments if not ELF64."""
    with open(path, "rb") as file:
        header = file.read(64)
        if header[:6] != b"\x7fELF\x02\x01":
            return False, 0, []
        kind, = struct.unpack_from("<H", header, 16)
        phoff, = struct.unpack_from("<Q", header, 32)
        phentsize, phnum = struct.unpack_from("<HH", header, 54)
        file.seek(phoff)
        table = file.read(phentsize * phnum)
    names = ("type", "flags", "offset", "vaddr", "paddr", "filesz", "memsz", "align")
    rows = (dict(zip(names, struct.unpack_from("<IIQQQQQQ", table, at))) for at in range(0, len(table), phentsize))
    return kind == ET_DYN, phoff, [row for row in rows if row["type"] == PT_LOAD]


def text_in_file(path):
    """File ranges of the executable segments."""
    return [(row["offset"], row["offset"] + row["filesz"]) for row in program_headers(path)[2] if row["flags"] & PF_X]


def text_ranges(pid):
    """Run-time addresses of the main executable's text, from its program headers and AT_PHDR."""
    _, phoff, loads = program_headers(f"/proc/{pid}/exe")
    with open(f"/proc/{pid}/auxv", "rb") as file:
        auxv = dict(struct.iter_unpack("<QQ", file.read()))
    bias = 0
    for row in loads:
        if row["offset"] <= phoff < row["offset"] + row["filesz"]:
            bias = auxv[AT_PHDR] - (phoff - row["offset"] + row["vaddr"])
    text = ((row["vaddr"] + bias, row["vaddr"] + row["memsz"] + bias) for row in loads if row["flags"] & PF_X)
    return [(a // PAGE * PAGE, -(-b // PAGE) * PAGE) for a, b in text]


def library_text_ranges(pid, path):
    """Run-time addresses of a shared object's text: from its lowest mapping on, be that its own or an image of it."""
    name = os.path.basename(path)
    mapped = [begin for begin, _, _, file, _ in vmas(pid) if file == path or "tiexec" in file and name[:20] in file]
    loads = program_headers(path)[2]
    if not mapped or not loads:
        return []
    bias = min(mapped) - min(row["vaddr"] for row in loads) // PAGE * PAGE
    text = ((row["vaddr"] + bias, row["vaddr"] + row["memsz"] + bias) for row in loads if row["flags"] & PF_X)
    return [(a // PAGE * PAGE, -(-b // PAGE) * PAGE) for a, b in text]


def whole_huge_pages(ranges, huge):
    """The parts of `ranges` that are whole huge pages, as ranges."""
    inner = ((-(-a // huge) * huge, b // huge * huge) for a, b in ranges)
    return [(a, b) for a, b in inner if a < b]


def total(ranges):
    return sum(b - a for a, b in ranges)


def vmas(pid):
    """The VMAs that smaps shows: (begin, end, permissions, name, {key: bytes})."""
    found = []
    with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="surrogateescape") as smaps:
        for line in smaps:
            key, _, rest = line.partition(" ")
            if not key.endswith(":"):
                begin, end = (int(part, 16) for part in key.split("-"))
                fields = rest.split(maxsplit=4)
                found.append((begin, end, fields[0], fields[4].strip() if len(fields) > 4 else "", {}))
            elif rest.rstrip().endswith(" kB"):
                found[-1][4][key] = int(rest.split()[0]) * 1024
    return found


def bytes_of(pid, ranges, keys):
    """The sum of what smaps says under `keys` for the VMAs that overlap the ranges."""
    return sum(numbers.get(key, 0) for begin, end, _, _, numbers in vmas(pid)
               if any(a < end and begin < b for a, b in ranges) for key in keys)


def huge_bytes(pid, ranges):
    """What smaps says is mapped by huge pages inside the ranges. Of a mapping that is huge in part only, and reaches beyond
    them, at least so much."""
    found = 0
    for begin, end, _, _, numbers in vmas(pid):
        inside = sum(max(0, min(end, b) - max(begin, a)) for a, b in ranges)
        huge = sum(numbers.get(key, 0) for key in HUGE_KEYS)
        found += max(0, min(huge, end - begin) - (end - begin - inside)) if inside else 0
    return found
