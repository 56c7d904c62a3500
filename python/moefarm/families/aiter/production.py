"""Runs one row of a tuned table through AITER's own fused_moe, as production does. Needs AITER and torch.

No program of moefarm calls this module. test_aiter_launch.py uses it to check that AITER's dispatcher runs
the kernels that a row names."""
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


def run_row(aiter: Aiter, row: Mapping[str, Any], tensors: Tensors, weights: Mapping[str, Weights]) -> Any:
    """Computes the layer and returns y [token, model_dim]. `row` is a row of a tuned table, `tensors` has x,
    topk_ids and topk_weights, `weights` is the result of convert_weights. Raises BadRow and RowNotUsed."""
    with tempfile.TemporaryDirectory(prefix="moefarm-aiter-") as folder:
        path = os.path.join(folder, "tuned_fmoe.csv")
        with open(path, "w", encoding="utf-8") as file:
            file.write(one_row(row))
        with _config(aiter, path), _chosen(aiter) as chosen:
            result = _fused_moe(aiter, row, tensors, weights)
    _check_used(row, chosen)
    return result


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


def clear_caches(aiter: Aiter) -> None:
    """Makes AITER read its tables again, as its tuner does before it measures a finished table."""
    aiter.fused_moe.cfg_2stages = None
    aiter.fused_moe.get_2stage_cfgs.cache_clear()
    find_file = aiter.fused_moe.AITER_CONFIGS.get_config_file
    if hasattr(find_file, "cache_clear"):
        find_file.cache_clear()


@contextlib.contextmanager
def _config(aiter: Aiter, path: str) -> Iterator[None]:
    before = os.environ.get(CONFIG_ENV)
    os.environ[CONFIG_ENV] = path
    clear_caches(aiter)
    try:
        yield
    finally:
        if before is None:
            del os.environ[CONFIG_ENV]
        else:
            os.environ[CONFIG_ENV] = before
        clear_caches(aiter)


@contextlib.contextmanager
def _chosen(aiter: Aiter) -> Iterator[List[Any]]:
    """Collects the choices of the dispatcher."""
    original, chosen = aiter.fused_moe.get_2stage_cfgs, []  # type: Any, List[Any]

    def choose(*arguments: Any, **options: Any) -> Any:
        chosen.append(original(*arguments, **options))
        return chosen[-1]

    aiter.fused_moe.get_2stage_cfgs = choose
    try:
        yield chosen
    finally:
        aiter.fused_moe.get_2stage_cfgs = original


def _kernels_of(metadata: Any) -> Dict[str, List[str]]:
    """The arguments that the dispatcher binds to each stage, as text. They include the kernel's name."""
    return {stage: [str(v) for v in getattr(getattr(metadata, stage, None), "keywords", {}).values()]
            for stage in ("stage1", "stage2")}


_KERNELS = ("_ZN", "moe_", "flydsl", "opus", "cktile")  # prefixes of kernel names


def _check_used(row: Mapping[str, Any], chosen: List[Any]) -> None:
    used = _kernels_of(chosen[-1] if chosen else None)
    for stage, column in (("stage1", "kernelName1"), ("stage2", "kernelName2")):
        kernel = str(row.get(column) or "")
        if kernel and kernel not in used[stage]:
            named = [text for text in used[stage] if text.startswith(_KERNELS)]
            raise RowNotUsed(f"{column} {kernel}: fused_moe chose {named[0] if named else 'its default'} for "
                             f"{stage}; the key of the row or the kernel's name is not what AITER looks up")
