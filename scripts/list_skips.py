#!/usr/bin/env python3
"""Lists the skipped tests of a ctest report with their reasons.

usage: list_skips.py REPORT.xml

`ctest --output-junit REPORT.xml` writes the report. A skipped test ends with exit code 77 and prints
"skipped: REASON" (tests/support/mf_check.h).
"""
import sys
import xml.etree.ElementTree as ElementTree


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
    return 0


if __name__ == "__main__":
    sys.exit(main())
