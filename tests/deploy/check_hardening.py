#!/usr/bin/python3
"""Checks that packages contain hardened programs. Configures the preset "release", which scripts/package.sh
builds, and checks the compiler's flags of every source and the linker's flags of every program. Then compiles
and links a sample with these flags and inspects it, and the programs in build/release if there are any.

    check_hardening.py SOURCE BUILD
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys

SOURCE, BUILD = (pathlib.Path(p) for p in sys.argv[1:3])
OUT = BUILD / "hardened"
COMPILE = ["-fstack-protector-strong", "-D_FORTIFY_SOURCE=2"]
LINK = ["-Wl,-z,relro,-z,now,-z,noexecstack"]
# Folder of the target's build files, name of the target
PROGRAMS = [("server", "moefarmd"), ("worker", "moefarm-worker"), ("cli", "moefarm"),
            ("kernels/gpu/host", "moefarm-compile")]
LIBRARIES = [("fmoe", "fmoe"), ("worker/runner", "moefarm-runner"),
             ("cli/python", "moefarm-cli")]
SAMPLE = r"""
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv)
{
    char copy[16];
    strcpy(copy, argv[argc - 1]);
    return printf("%s", copy) < 0;
}
"""


def fail(text):
    sys.exit(f"check_hardening: {text}")


def run(*command, cwd=None):
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        fail(f"{shlex.join(map(str, command))}:\n{done.stdout}")
    return done.stdout


def check_sources():
    commands = json.loads((OUT / "compile_commands.json").read_text())
    ours = [c for c in commands if not re.match(str(SOURCE / "tests") + "/", c["file"])]
    for command in ours:
        words = shlex.split(command["command"])
        for flag in COMPILE:
            if flag not in words:
                fail(f"{command['file']} is compiled without {flag}")
        if not {"-fPIE", "-fPIC"} & set(words):
            fail(f"{command['file']} is compiled without -fPIE or -fPIC")
    return next(c for c in ours if c["file"].endswith("server/main.c"))


def link_words(folder, name):
    return shlex.split((OUT / folder / "CMakeFiles" / f"{name}.dir" / "link.txt").read_text())


def check_links():
    for target in PROGRAMS + LIBRARIES:
        words = link_words(*target)
        for flag in LINK + (["-pie"] if target in PROGRAMS else ["-shared"]):
            if flag not in words:
                fail(f"{target[1]} is linked without {flag}")


def inspect(path, program):
    """The properties of a linked file, as readelf shows them."""
    text = run("readelf", "--wide", "--file-header", "--program-headers", "--dynamic", "--symbols", path)
    for pattern, what in ((r"Type:\s+DYN", "no PIE"), (r"GNU_RELRO", "no RELRO"),
                          (r"\(FLAGS(_1)?\)\s.*\b(BIND_NOW|NOW)\b", "no BIND_NOW"),
                          (r"GNU_STACK\s+\S+ \S+ \S+ \S+ \S+ RW ", "an executable stack"),
                          (r"__stack_chk_fail", "no stack protector"), (r"_chk@", "no FORTIFY")):
        if not re.search(pattern, text):
            fail(f"{path} has {what}")
    if program and not re.search(r"\(FLAGS_1\)\s.*\bPIE\b", text):
        fail(f"{path} is not an executable with PIE")


def check_sample(command):
    words = shlex.split(command["command"])
    flags = [w for w in words[1:words.index("-o")] if re.match(r"-[fDUOg]", w)]
    links = [w for w in link_words(*PROGRAMS[0]) if w == "-pie" or w.startswith("-Wl,-z")]
    (OUT / "sample.c").write_text(SAMPLE)
    run("gcc", *flags, "-w", "-c", "sample.c", "-o", "sample.o", cwd=OUT)
    run("gcc", *links, "sample.o", "-o", "sample", cwd=OUT)
    inspect(OUT / "sample", True)


def main():
    run("cmake", "--preset", "release", "-B", OUT, cwd=SOURCE)
    command = check_sources()
    check_links()
    check_sample(command)
    built = [p for p in (SOURCE / "build/release").rglob("*")
             if re.fullmatch(r"moefarmd|moefarm|moefarm-(worker|compile|hip-\w+\.so)|libfmoe\.so", p.name)
             and p.is_file()]
    for path in built:
        inspect(path, path.suffix != ".so")
    if not re.search(r"build\.sh release ", (SOURCE / "scripts/package.sh").read_text()):
        fail("scripts/package.sh does not build the preset release")
    print(f"checked the flags of the preset release, a sample, and {len(built)} files of build/release")


main()
