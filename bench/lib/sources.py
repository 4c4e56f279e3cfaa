"""Large sources, generated: for compilers to have something to do."""

import shutil
import subprocess
from pathlib import Path

HEADERS = ["algorithm", "chrono", "condition_variable", "deque", "filesystem", "functional", "future", "iostream", "list", "map",
           "memory", "numeric", "random", "regex", "set", "sstream", "string", "thread", "tuple", "unordered_map", "variant",
           "vector"]


def cplusplus(work, parts):
    """A C++ file that uses much of the library, in `parts` instances of the same templates."""
    bodies = "\n".join(
        f"struct T{n} {{ int v; bool operator<(const T{n}& o) const {{ return v < o.v; }} }};\n"
        f"int f{n}(const std::string& s) {{\n  std::map<std::string, std::vector<T{n}>> m;\n  m[s].push_back(T{n}{{{n}}});\n"
        f"  std::regex r(\"a+{n}\");\n  std::sort(m[s].begin(), m[s].end());\n"
        f"  return static_cast<int>(m.size()) + std::regex_search(s, r);\n}}" for n in range(parts))
    source = work / "large.cc"
    source.write_text("".join(f"#include <{header}>\n" for header in HEADERS) + bodies + "\n")
    return str(source)


def crate(work, parts):
    """A crate of generic code, one codegen unit."""
    functions = "\n".join(
        f"pub fn f{n}(input: &[u64]) -> BTreeMap<String, Vec<u64>> {{\n    let mut map: BTreeMap<String, Vec<u64>> = BTreeMap::new();\n"
        f"    for (index, value) in input.iter().enumerate().filter(|(i, v)| (*i as u64 + **v) % {n + 2} == 0) {{\n"
        f"        map.entry(format!(\"{{value}}-{n}\")).or_default().push(index as u64 ^ value);\n    }}\n    map\n}}" for n in range(parts))
    source = work / "lib.rs"
    source.write_text(f"use std::collections::BTreeMap;\n{functions}\n")
    return str(source)


def typescript(work, parts):
    """A file of generic classes."""
    source = work / "large.ts"
    source.write_text("".join(
        f"interface I{n}<T> {{ a: T; b: Map<string, I{n}<T>[]>; c?: Partial<Record<keyof T, number>> }}\n"
        f"export class C{n}<T extends object> implements I{n}<T> {{ b = new Map<string, I{n}<T>[]>();\n"
        f"  constructor(public a: T) {{}}\n  m(x: I{n}<T>): string[] {{ return [...this.b.keys()].filter(k => k in x.a).map(k => k + {n}); }} }}\n"
        for n in range(parts)))
    return str(source)


def java(work, parts):
    """A file of generic classes."""
    source = work / "Large.java"
    source.write_text("import java.util.*;\nimport java.util.stream.*;\n" + "".join(
        f"class C{n}<T extends Comparable<T>> {{\n  final Map<String, List<T>> m = new TreeMap<>();\n"
        f"  List<T> f(String k, T v) {{ return m.computeIfAbsent(k + {n}, x -> new ArrayList<>()).stream()\n"
        f"    .filter(o -> o.compareTo(v) > 0).sorted().collect(Collectors.toList()); }}\n}}\n" for n in range(parts)))
    return str(source)


def real_rustc():
    """rustc itself: what rustup puts in the PATH only looks for it."""
    if not shutil.which("rustc"):
        return None
    said = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True)
    return str(Path(said.stdout.strip()) / "bin" / "rustc") if said.returncode == 0 else None
