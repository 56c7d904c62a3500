"""Records the routing of a model: how often each expert is chosen."""
from __future__ import annotations

import os
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch

from moefarm._library import Error

BUCKETS = [1 << i for i in range(16)] + [131072]  # token counts of libfmoe's buckets


def bucket_index(tokens: int) -> int:
    """Index of the bucket of a token count, as libfmoe looks it up."""
    return 16 if tokens >= 131072 else min((tokens - 1).bit_length(), 15)


class _Counter:
    """The histograms of one module. The last column counts ids of no expert, such as -1 and `experts`."""

    def __init__(self, module: Any, every: int) -> None:
        weight = next(iter(module.parameters()))
        self.experts, self.every, self.calls = int(module.num_experts), every, 0
        self.counts = torch.zeros(len(BUCKETS), self.experts + 1, dtype=torch.int64, device=weight.device)
        self.one = torch.ones(1, dtype=torch.int64, device=weight.device)
        self.hook = module.register_forward_pre_hook(self.count, with_kwargs=True)

    def count(self, module: Any, arguments: Tuple[Any, ...], named: "dict[str, Any]") -> None:
        self.calls += 1
        if self.calls % self.every != 0 and not (
                self.counts.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        ids: torch.Tensor = arguments[1] if len(arguments) > 1 else named["top_k_index"]
        if ids.shape[0] == 0:
            return
        columns = ids.detach().reshape(-1).long() % (self.experts + 1)  # few kernels: a graph replays them
        row = self.counts[bucket_index(ids.shape[0])]
        row.scatter_add_(0, columns, self.one.expand(columns.shape[0]))


class RoutingRecorder:
    """Counts per module, bucket and expert. It records until `stop`, or until the context ends."""

    def __init__(self, modules: Sequence[Tuple[str, Any]], every: int) -> None:
        if every < 1:
            raise Error(f"every is {every}: expected at least 1")
        self.names = [name for name, _ in modules]
        self._counters = [_Counter(module, every) for _, module in modules]

    def __enter__(self) -> "RoutingRecorder":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the recording. The counts stay readable."""
        for counter in self._counters:
            counter.hook.remove()

    def counts(self, layer: int, tokens: Optional[int] = None) -> torch.Tensor:
        """Returns the counts of one module, int64 [experts], on the CPU: of the bucket of `tokens`, or of all
        calls. Waits for the device."""
        counts = self._counters[layer].counts[:, :-1].cpu()
        return counts.sum(0) if tokens is None else counts[bucket_index(tokens)]

    def profile(self, layer: Optional[int] = None, tokens: Optional[int] = None) -> List[int]:
        """Returns the counts of one module, or of all modules. The kernels' time depends on how uneven the
        routing is, not on which expert is popular, so the counts of several modules are added in descending
        order. Error: the modules have different numbers of experts, or no call was recorded."""
        layers = range(len(self.names)) if layer is None else [layer]
        found = [self.counts(i, tokens) for i in layers]
        if len({len(counts) for counts in found}) > 1:
            raise Error("the model's layers have different numbers of experts: pass layer")
        if layer is None:
            found = [counts.sort(descending=True).values for counts in found]
        total: List[int] = torch.stack(found).sum(0).tolist()
        if not any(total):
            raise Error("no call was recorded" + (f" with {tokens} tokens" if tokens is not None else ""))
        return total

    def save(self, path: Union[str, "os.PathLike[str]"], layer: Optional[int] = None,
             tokens: Optional[int] = None) -> None:
        """Writes the file that `moefarm submit --routing @FILE` takes: the profile, separated by spaces."""
        text = " ".join(map(str, self.profile(layer, tokens)))
        with open(path, "w", encoding="ascii") as file:
            file.write(text + "\n")
