"""Runs the unittest cases of one file for ctest.

usage: run_test.py FILE.py

Ends with status 0 if all cases passed, 1 if one failed, and 77 if none failed but some were skipped. The
reason of each skip is printed as "skipped: REASON", which scripts/list_skips.py lists at the end of a run.
"""
import pathlib
import sys
import unittest

SKIPPED = 77


def main() -> int:
    path = pathlib.Path(sys.argv[1]).resolve()
    root = pathlib.Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(root / "python"), str(path.parent)]
    try:
        cases = unittest.defaultTestLoader.loadTestsFromName(path.stem)
    except unittest.SkipTest as skip:  # the file lacks a package
        print(f"skipped: {skip}")
        return SKIPPED
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(cases)
    for reason in dict.fromkeys(reason for _, reason in result.skipped):
        print(f"skipped: {reason}")
    if not result.wasSuccessful() or result.testsRun == 0 and not result.skipped:
        return 1
    return SKIPPED if result.skipped else 0


if __name__ == "__main__":
    sys.exit(main())
