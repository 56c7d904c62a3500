#!/usr/bin/env python3
"""Lists the skipped tests of a ctest report with their reasons.

usage: list_skips.py REPORT.xml

`ctest --output-junit REPORT.xml` writes the report. A skipped test ends with exit code 77 and prints
"skipped: REASON" (tests/support/mf_check.h). The last line says whether anything is missing that
scripts/setup.sh installs without options.
"""
import sys
import xml.etree.ElementTree as ElementTree


# Words of the reasons that are expected on a machine without a GPU, Slurm, systemd, Chromium, buildah,
# PyTorch and the sources of AITER, vLLM and SGLang.
OPTIONAL = ("gpu", "cuda", "nvrtc", "hip", "gfx", "sm_", "moefarm_test_device", "slurm", "systemd",
            "chromium", "buildah", "mmdebstrap", "pytorch", "python3-venv", "aiter_dir", "vllm_dir",
            "sglang_dir")


def reasons(case: ElementTree.Element) -> list[str]:
    """Returns the reasons that a skipped test printed, in order and without duplicates."""
    output = case.findtext("system-out") or ""
    found = [line.strip().removeprefix("skipped: ") for line in output.splitlines() if "skipped: " in line]
    return list(dict.fromkeys(found)) or ["no reason printed"]


def main() -> int:
    try:
        cases = ElementTree.parse(sys.argv[1]).getroot().iter("testcase")
    except (OSError, ElementTree.ParseError) as error:
        print(f"list_skips: {sys.argv[1]}: {error}", file=sys.stderr)
        return 1
    skipped = [case for case in cases if case.find("skipped") is not None or case.get("status") == "notrun"]
    print(f"{len(skipped)} tests skipped" + (":" if skipped else ""))
    for case in skipped:
        for reason in reasons(case):
            print(f"  {case.get('name')}: {reason}")
    found = [reason for case in skipped for reason in reasons(case)]
    other = [reason for reason in found if not any(word in reason.lower() for word in OPTIONAL)]
    if other:
        print(f"{len(other)} of these reasons have nothing to do with a GPU, Slurm, systemd, Chromium, "
              "buildah, PyTorch or the sources of AITER, vLLM and SGLang:")
        print("\n".join(f"  {reason}" for reason in dict.fromkeys(other)))
    elif skipped:
        print("Only what needs a GPU or its compilers, Slurm, systemd, Chromium, buildah, PyTorch or the "
              "sources of AITER, vLLM and SGLang was skipped.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
