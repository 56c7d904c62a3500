"""Runs a row of a tuned table through AITER's own fused_moe, as production does. Needs AITER and torch."""
from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Any, Dict, Iterator, List, Mapping

from .launch import Tensors, Weights
from .source import Aiter
from .table import CONFIG_ENV, one_row


class RowNotUsed(RuntimeError):
    """AITER's dispatcher chose other kernels than those of the row. It does so without a message if the row's
    key differs from the key that it computes, or if a kernel's name is not in the built module."""


class Row:
    """A row of a tuned table. The first run reads a file with this row alone, with AITER's caches cleared,
    and keeps the dispatcher's choice; further runs use the choice, as production uses its caches."""

    def __init__(self, aiter: Aiter, row: Mapping[str, Any]) -> None:
        """Raises BadRow."""
        self.aiter, self.row, self.table = aiter, row, one_row(row)
        self.choices: Dict[Any, Any] = {}  # results of the dispatcher by its arguments

    def run(self, tensors: Tensors, weights: Mapping[str, Weights]) -> Any:
        """Computes the layer and returns y [token, model_dim]. `tensors` has x, topk_ids and topk_weights,
        `weights` is the result of convert_weights. Raises RowNotUsed."""
        with self._dispatcher():
            return _fused_moe(self.aiter, self.row, tensors, weights)

    @contextlib.contextmanager
    def _dispatcher(self) -> Iterator[None]:
        """Replaces AITER's dispatcher, which maps its arguments to kernels."""
        module: Any = self.aiter.fused_moe
        original = module.get_2stage_cfgs

        def choose(*arguments: Any, **options: Any) -> Any:
            key = (arguments, tuple(sorted(options.items())))
            if key not in self.choices:
                with _table(self.aiter, self.table, original):
                    choice = original(*arguments, **options)
                _check_used(self.row, choice)  # before AITER runs other kernels
                self.choices[key] = choice
            return self.choices[key]

        module.get_2stage_cfgs = choose
        try:
            yield
        finally:
            module.get_2stage_cfgs = original


def _fused_moe(aiter: Aiter, row: Mapping[str, Any], tensors: Tensors, weights: Mapping[str, Weights]) -> Any:
    kinds = aiter.aiter
    return aiter.fused_moe.fused_moe(
        tensors["x"], weights["w1"].values, weights["w2"].values,
        tensors["topk_weights"], tensors["topk_ids"],
        activation=getattr(kinds.ActivationType, _last(row["act_type"])),
        quant_type=getattr(kinds.QuantType, _last(row["q_type"])),
        doweight_stage1=bool(int(row["doweight_stage1"])),
        w1_scale=weights["w1"].scale, w2_scale=weights["w2"].scale)


def _last(name: Any) -> str:
    """"QuantType.per_Token" gives "per_Token"."""
    return str(name).rsplit(".", 1)[-1]


def _clear_caches(aiter: Aiter, dispatcher: Any) -> None:
    """Makes AITER read its tables again, as its tuner does before it measures a finished table."""
    aiter.fused_moe.cfg_2stages = None
    dispatcher.cache_clear()
    find_file = aiter.fused_moe.AITER_CONFIGS.get_config_file
    if hasattr(find_file, "cache_clear"):
        find_file.cache_clear()


@contextlib.contextmanager
def _table(aiter: Aiter, text: str, dispatcher: Any) -> Iterator[None]:
    """Makes a file with this text AITER's only table."""
    before = os.environ.get(CONFIG_ENV)
    with tempfile.TemporaryDirectory(prefix="moefarm-aiter-") as folder:
        os.environ[CONFIG_ENV] = os.path.join(folder, "tuned_fmoe.csv")
        with open(os.environ[CONFIG_ENV], "w", encoding="utf-8") as file:
            file.write(text)
        _clear_caches(aiter, dispatcher)
        try:
            yield
        finally:
            if before is None:
                del os.environ[CONFIG_ENV]
            else:
                os.environ[CONFIG_ENV] = before
            _clear_caches(aiter, dispatcher)


def _kernels_of(metadata: Any) -> Dict[str, List[str]]:
    """The arguments that the dispatcher binds to each stage, as text. They include the kernel's name."""
    return {stage: [str(v) for v in getattr(getattr(metadata, stage, None), "keywords", {}).values()]
            for stage in ("stage1", "stage2")}


_KERNELS = ("_ZN", "moe_", "flydsl", "opus", "cktile")  # prefixes of kernel names


def _check_used(row: Mapping[str, Any], choice: Any) -> None:
    used = _kernels_of(choice)
    for stage, column in (("stage1", "kernelName1"), ("stage2", "kernelName2")):
        kernel = str(row.get(column) or "")
        if kernel and kernel not in used[stage]:
            named = [text for text in used[stage] if text.startswith(_KERNELS)]
            raise RowNotUsed(f"{column} {kernel}: fused_moe chose {named[0] if named else 'its default'} for "
                             f"{stage}; the key of the row or the kernel's name is not what AITER looks up")
