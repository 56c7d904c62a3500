#!/usr/bin/env python3
"""Measures size and structure of the sources. Prints one "name value" per line.

usage: scripts/census.py

Product code is everything that is not below tests/. Generated, vendored and data files do not count.
"""
import collections
import os
import re
import subprocess

SOURCE = (".c", ".h", ".hip", ".cc", ".py", ".js", ".mjs", ".sql", ".sh", ".cmake")
COLUMNS = 110
BLOCK = 6  # minimum number of equal lines in a repeated block


def tracked() -> list[str]:
    """Returns the source files that people read, as paths from the top of the checkout."""
    listed = subprocess.run(["git", "ls-files"], check=True, stdout=subprocess.PIPE, text=True)
    files = listed.stdout.split("\n")
    skipped = re.compile(r"^tests/data/|^tests/fuzz/fuzz_[a-z]+/|/vendor/")
    return [f for f in files if f and os.path.isfile(f) and not skipped.search(f)]


def function_lengths(text: str) -> list[int]:
    """Returns the number of lines in each function body, between lines with only "{" and only "}"."""
    lengths, start = [], None
    for number, line in enumerate(text.split("\n")):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            lengths.append(number - start - 1)
            start = None
    return lengths


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the strongly connected components with two or more modules (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while True:
                component.append(stack.pop())
                if component[-1] == node:
                    break
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def includes(files: list[str]) -> dict[str, set[str]]:
    """Maps modules to the modules they include. A .c file, its .h and its _private header are one module."""
    def module(path: str) -> str:
        return re.sub(r"(_private|_internal)?\.[a-z.]+$", "", path)

    graph: dict[str, set[str]] = {module(f): set() for f in files}
    for f in files:
        for name in re.findall(r'^#\s*include "([^"]+)"', read(f), re.MULTILINE):
            target = module(name)
            if target in graph and target != module(f):
                graph[module(f)].add(target)
    return graph


def repeated(files: list[str]) -> int:
    """Returns the number of blocks of lines that occur in several places. A longer block counts once."""
    seen: dict[tuple[str, ...], tuple[str, int]] = {}
    count = 0
    for f in files:
        lines = [line.strip() for line in read(f).split("\n")]
        comment = ("#include", "*", "/*", "//")
        lines = [line for line in lines if len(line) > 2 and not line.startswith(comment)]
        inside = False
        for i in range(len(lines) - BLOCK + 1):
            block = tuple(lines[i : i + BLOCK])
            known = block in seen
            count += known and not inside
            inside = known
            seen.setdefault(block, (f, i))
    return count


def read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def main() -> None:
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    files = tracked()
    sources = [f for f in files if f.endswith(SOURCE)]
    product = [f for f in sources if not f.startswith("tests/")]
    tests = [f for f in sources if f.startswith("tests/")]
    folders = collections.Counter(os.path.dirname(f) for f in files)
    print(f"product_lines {sum(read(f).count(chr(10)) for f in product)}")
    print(f"test_lines {sum(read(f).count(chr(10)) for f in tests)}")
    for folder, count in folders.most_common(3):
        print(f"largest_folder {count} {folder}")
    lengths = sorted(n for f in product if f.endswith(".c") for n in function_lengths(read(f)))
    print(f"functions {len(lengths)}")
    for name, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("longest", 1.0)):
        print(f"function_lines_{name} {lengths[min(len(lengths) - 1, int(len(lengths) * share))]}")
    wide = [f for f in files if f.endswith(SOURCE + (".md", ".txt"))]
    over = sum(len(line) > COLUMNS for f in wide for line in read(f).split("\n"))
    print(f"lines_over_{COLUMNS}_columns {over}")
    found = circles(includes([f for f in product if f.endswith((".c", ".h", ".hip"))]))
    print(f"include_circles {len(found)}")
    for component in found:
        print(f"include_circle {len(component)} {' '.join(component)}")
    print(f"repeated_blocks {repeated([f for f in sources if f.endswith(('.c', '.h', '.hip', '.py'))])}")
    docs = [f for f in files if f.startswith("docs/") and f.endswith(".md")]
    print(f"docs_lines {sum(read(f).count(chr(10)) for f in docs)}")


if __name__ == "__main__":
    main()
