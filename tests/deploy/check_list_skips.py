#!/usr/bin/env python3
"""Checks scripts/list_skips.py: it tells expected skips from tests that lack a package of scripts/setup.sh.

usage: check_list_skips.py SOURCE_FOLDER BUILD_FOLDER
"""
import subprocess
import sys
import tempfile
from pathlib import Path

CASES = [
    # reasons of skipped tests; last line
    ([], "0 tests skipped"),
    (["chromium missing (packages chromium, chromium-driver)", "systemd is missing (package systemd)",
      "srun is missing (packages slurm-wlm, munge, iproute2)", "gfx942 by clang-19: not found",
      "MOEFARM_TEST_DEVICE names no device for the large layers",
      "AITER_DIR is not set; it names a checkout of ROCm/aiter", "no PyTorch: No module named 'torch'"],
     "Only what needs a GPU or its compilers, Slurm, systemd, Chromium, buildah, PyTorch or the sources of "
     "AITER, vLLM and SGLang was skipped."),
    (["systemd is missing (package systemd)", "promtool is missing (package prometheus)"],
     "  promtool is missing (package prometheus)"),
]


def last_line(script: Path, reasons: list[str]) -> str:
    cases = "".join(f'<testcase name="t" status="notrun"><skipped/><system-out>skipped: {reason}</system-out>'
                    "</testcase>" for reason in reasons)
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as report:
        report.write(f"<testsuite>{cases}</testsuite>")
        report.flush()
        ran = subprocess.run([sys.executable, script, report.name], check=True, text=True,
                             capture_output=True)
    return ran.stdout.splitlines()[-1]


def main() -> int:
    script = Path(sys.argv[1]) / "scripts" / "list_skips.py"
    for reasons, expected in CASES:
        found = last_line(script, reasons)
        assert found == expected, f"{reasons}: {found!r}, expected {expected!r}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
