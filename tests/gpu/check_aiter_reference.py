#!/usr/bin/env python3
"""Compares the torch references of AITER's tuner with the farm's reference on an NVIDIA GPU. The farm's data,
gates and runner are those of every measurement (tests/python/aiter_reference_family.py).

    AITER_DIR=CHECKOUT MOEFARM_BUILD=build/dev tests/gpu/check_aiter_reference.py [DEVICE]

DEVICE: default hip:nvidia:0. The interpreter needs torch, pandas, einops, psutil and triton. Exit status: 0
if they agree, 1 if not, 77 if something is missing."""
import os
import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "python"


def main() -> int:
    device = sys.argv[1] if len(sys.argv) > 1 else "hip:nvidia:0"
    code = ("import sys, unittest; import test_aiter_farm as t; "
            "t.MISSING and sys.exit(print('skipped:', t.MISSING) or 77); "
            "unittest.main(t, argv=['check', '-v', 'OnFarm.test_references'])")
    run = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, check=False,
                         env={**os.environ, "MOEFARM_TEST_DEVICE": device})
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
