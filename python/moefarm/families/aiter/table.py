"""The file that AITER's dispatcher reads, with one row. Standard library only.

AITER_CONFIG_FMOE replaces all of AITER's tables, so a file with one row makes fused_moe() run exactly this
row (ROCm/aiter, aiter/fused_moe.py, get_2stage_cfgs)."""
from __future__ import annotations

import csv
import io
from typing import Any, Mapping

from .tasks import KEY_COLUMNS

CONFIG_ENV = "AITER_CONFIG_FMOE"
RESULT_COLUMNS = ("block_m", "ksplit", "us1", "kernelName1", "err1", "us2", "kernelName2", "err2", "us",
                  "run_1stage", "xbf16", "flat", "tflops", "bw")
# Values of columns that a row may lack. The dispatcher reads none of the measurements.
_USUAL = {"ksplit": 0, "us1": 0, "err1": "0.0%", "us2": 0, "kernelName2": "", "err2": "0.0%", "us": 0,
          "run_1stage": 0, "xbf16": 0, "flat": 0, "tflops": 0, "bw": 0}
_FLAGS = ("use_g1u1", "doweight_stage1", "run_1stage", "xbf16", "flat")


class BadRow(ValueError):
    """AITER's dispatcher would not find the row or not run it. The text names the column."""


def one_row(row: Mapping[str, Any]) -> str:
    """Returns the text of a tuned table with this row. `row` has the key, block_m and kernelName1; the other
    result columns are optional. Raises BadRow."""
    values = {**_USUAL, **row}
    for column in KEY_COLUMNS + ("block_m", "kernelName1"):
        if str(values.get(column, "")).strip() == "":
            raise BadRow(f"column {column} is empty; the key, block_m and kernelName1 are required")
    for column in _FLAGS:
        values[column] = _flag(column, values[column])
    if not values["run_1stage"] and not str(values["kernelName2"]):
        raise BadRow("kernelName2 is empty; only a row with run_1stage=1 has one kernel")
    if values["run_1stage"] == 0 and (values["xbf16"] or values["flat"]):
        raise BadRow("xbf16 and flat are read only with run_1stage=1")
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(KEY_COLUMNS + RESULT_COLUMNS)
    lines.writerow([values[column] for column in KEY_COLUMNS + RESULT_COLUMNS])
    return text.getvalue()


def _flag(column: str, value: Any) -> int:
    """1 or 0. A file that has True in one row and 1 in another is read as text, and then no key matches."""
    words = {"1": 1, "true": 1, "0": 0, "false": 0}
    if str(value).lower() not in words:
        raise BadRow(f"column {column}: {value!r}: expected 0 or 1")
    return words[str(value).lower()]
