"""Measure tokens per second of a transformers model with moefarm's experts and with transformers' own.

    python3 -m moefarm.bench --table tuned_fmoe.csv                        # Qwen3-30B-A3B, 6 layers, on a GPU
    python3 -m moefarm.bench --model mixtral-8x7b --layers 2 --batch 1,16
    python3 -m moefarm.bench --model small --device cpu

All implementations run in one process. The model has the sizes of the named model, fewer layers and random
weights. A step is a forward of one token per sequence, without a key-value cache. `forward` is a step called
from Python; `graph` is a replay of the step's CUDA graph. Times are medians of rounds in which the
implementations take turns. Tokens per second are those of the faster of forward and graph. The error of an
implementation is the relative error of its logits against `eager`, the median of 16 tokens."""
from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

import torch
import transformers

from moefarm.integrations.transformers import NAME, prepare

_QWEN3 = {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
          "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
          "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True}
# name: (transformers' class, configuration, layers by default)
MODELS: Dict[str, Any] = {
    "qwen3-30b-a3b": ("Qwen3Moe", _QWEN3, 6),
    "mixtral-8x7b": ("Mixtral", {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
                                 "num_local_experts": 8, "num_experts_per_tok": 2, "num_attention_heads": 32,
                                 "num_key_value_heads": 8}, 4),
    "gpt-oss-20b": ("GptOss", {"vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
                               "num_local_experts": 32, "num_experts_per_tok": 4}, 4),
    "small": ("Qwen3Moe", {**_QWEN3, "vocab_size": 1024, "hidden_size": 256, "moe_intermediate_size": 96,
                           "num_attention_heads": 4, "num_experts": 32, "intermediate_size": 512}, 2),
}
IMPLEMENTATIONS = ("eager", "batched_mm", "grouped_mm", NAME)
NOT_CAPTURED = ("eager",)  # waits for the device
SEQUENCES, PROMPT = 2, 8  # sequences, and tokens of each, whose logits are compared
WARMUP, ROUNDS, TARGET_S = 3, 7, 0.1


class Result(NamedTuple):
    """One implementation at one batch size. A time is None if it was not measured."""

    implementation: str
    batch: int
    forward_ms: Optional[float]
    graph_ms: Optional[float]
    note: str  # why a time is missing

    def rate(self) -> float:
        """Tokens per second."""
        times = [ms for ms in (self.forward_ms, self.graph_ms) if ms]
        return self.batch / min(times) * 1e3 if times else 0.0


class _Steps(NamedTuple):
    """The steps to time of one implementation at one batch size."""

    forward: Optional[Callable[[], Any]]
    graph: Any  # torch.cuda.CUDAGraph, or None
    note: str


class Bench:
    """A model with random weights, and the measurements of it."""

    def __init__(self, model: str, layers: Optional[int], device: str) -> None:
        kind, config, default = MODELS[model]
        self.layers = layers or default
        self.device = torch.device(device)
        self.config = getattr(transformers, kind + "Config")(**{**config, "num_hidden_layers": self.layers})
        torch.manual_seed(0)
        default_dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device(self.device):
                self.model = getattr(transformers, kind + "ForCausalLM")(self.config).eval()
        finally:
            torch.set_default_dtype(default_dtype)
        self.packed: Any = None  # the copy of the model that has moefarm's experts
        # One token attends to itself only. Without these entries, GptOss makes its masks on the host.
        self.masks = {"full_attention": None, "sliding_attention": None} if kind == "GptOss" else None
        self.prompt = self._tokens(SEQUENCES, PROMPT)

    def _tokens(self, *shape: int) -> torch.Tensor:
        return torch.randint(0, self.config.vocab_size, shape, device=self.device)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _empty_cache(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def prepare(self, table: Optional[str]) -> None:
        """Makes a copy of the model with moefarm's experts, so that all implementations can take turns."""
        self.packed = copy.deepcopy(self.model)
        prepare(self.packed, table)

    def select(self, implementation: str) -> Any:
        """Returns the model with this implementation of the experts."""
        if implementation == NAME:
            return self.packed
        self.model.set_experts_implementation(implementation)
        return self.model

    def errors(self, implementations: Sequence[str]) -> Dict[str, Optional[float]]:
        """Relative errors of the tokens' logits against `eager`, their median. None: out of memory."""
        found = {name: self._logits(name) for name in implementations}
        expected = found.get("eager")
        if expected is None:
            return {}
        return {name: None if got is None else
                float(((got - expected).norm(dim=-1) / expected.norm(dim=-1)).median())
                for name, got in found.items() if name != "eager"}

    def _logits(self, implementation: str) -> Optional[torch.Tensor]:
        result = None
        try:
            with torch.no_grad():
                result = self.select(implementation)(input_ids=self.prompt, use_cache=False).logits.float()
        except torch.OutOfMemoryError:
            pass
        self._empty_cache()
        return result

    def time_ms(self, step: Callable[[], Any]) -> float:
        """Time of a step in a run of about 0.1 s."""
        start = time.perf_counter()
        step()
        self._synchronize()
        n = max(1, min(200, round(TARGET_S / (time.perf_counter() - start))))
        start = time.perf_counter()
        for _ in range(n):
            step()
        self._synchronize()
        return (time.perf_counter() - start) / n * 1e3

    def capture(self, step: Callable[[], Any]) -> Any:
        """Returns a CUDA graph of the step."""
        make_stream: Any = torch.cuda.Stream  # torch declares no types for it
        side, graph = make_stream(), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                step()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            step()
        return graph

    def _open(self, implementation: str, tokens: torch.Tensor) -> _Steps:
        model, options = self.select(implementation), {"attention_mask": self.masks} if self.masks else {}

        def forward() -> Any:
            return model(input_ids=tokens, use_cache=False, **options)

        graph = None
        note = ""
        try:
            for _ in range(WARMUP):
                forward()
            self._synchronize()
            if self.device.type == "cuda" and implementation not in NOT_CAPTURED:
                graph = self.capture(forward)
        except torch.OutOfMemoryError:
            return _Steps(None, None, "out of memory")
        except RuntimeError as error:
            note = " ".join(str(error).split())[:60]
        return _Steps(forward, graph, note)

    def measure(self, implementations: Sequence[str], batch: int) -> List[Result]:
        """Medians over rounds in which the implementations take turns."""
        tokens = self._tokens(batch, 1)
        forwards: Dict[str, List[float]] = {name: [] for name in implementations}
        graphs: Dict[str, List[float]] = {name: [] for name in implementations}
        with torch.no_grad():
            opened = {}
            for name in implementations:
                opened[name] = self._open(name, tokens)
                self._empty_cache()
            for _ in range(ROUNDS):
                for name, steps in opened.items():
                    self.select(name)
                    if steps.forward:
                        forwards[name].append(self.time_ms(steps.forward))
                    if steps.graph:
                        graphs[name].append(self.time_ms(steps.graph.replay))
        notes = {name: steps.note for name, steps in opened.items()}
        opened.clear()
        self._empty_cache()
        return [Result(name, batch, _median(forwards[name]), _median(graphs[name]), notes[name])
                for name in implementations]


def _median(samples: List[float]) -> Optional[float]:
    return statistics.median(samples) if samples else None


def _milliseconds(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.2f}"


def lines(results: Sequence[Result], baseline: str = "grouped_mm") -> Iterator[str]:
    """The table, one row per batch size and implementation."""
    yield f"{'batch':>5}  {'experts':<11} {'forward ms':>10} {'graph ms':>9} {'tokens/s':>10} {'ratio':>6}"
    rates = {(r.batch, r.implementation): r.rate() for r in results}
    for r in results:
        base = rates.get((r.batch, baseline))
        ratio = f"{r.rate() / base:.2f}" if base else "-"
        yield (f"{r.batch:>5}  {r.implementation:<11} {_milliseconds(r.forward_ms):>10} "
               f"{_milliseconds(r.graph_ms):>9} {r.rate():>10,.0f} {ratio:>6}  {r.note}").rstrip()
    yield f"ratio: tokens/s divided by that of {baseline}"


def _is_positive(text: str) -> bool:
    return text.isdecimal() and int(text) > 0


def _number(text: str) -> int:
    if not _is_positive(text):
        raise argparse.ArgumentTypeError(f"'{text}': expected a number from 1")
    return int(text)


def _numbers(text: str) -> List[int]:
    numbers = text.split(",")
    if not all(_is_positive(part) for part in numbers):
        raise argparse.ArgumentTypeError(f"'{text}': expected numbers from 1, separated by commas")
    return [int(part) for part in numbers]


def _implementations(text: str) -> List[str]:
    """Returns the named implementations, in the order of IMPLEMENTATIONS."""
    names = text.split(",")
    if not set(names) <= set(IMPLEMENTATIONS):
        raise argparse.ArgumentTypeError(f"'{text}': expected names from {','.join(IMPLEMENTATIONS)}")
    return [name for name in IMPLEMENTATIONS if name in names]


def _options(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m moefarm.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="qwen3-30b-a3b",
                        help="sizes of the model (default: qwen3-30b-a3b)")
    parser.add_argument("--layers", type=_number, help="number of layers (default: 2 to 6, by model)")
    parser.add_argument("--table", help="tuned table (default: none, libfmoe's fallback serves every call)")
    parser.add_argument("--batch", type=_numbers, default=[1, 16, 64, 256],
                        help="batch sizes (default: 1,16,64,256)")
    parser.add_argument("--experts", type=_implementations, default=list(IMPLEMENTATIONS),
                        help=f"implementations of the experts (default: {','.join(IMPLEMENTATIONS)})")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu",
                        help="torch device (default: cuda if there is one, else cpu)")
    parser.add_argument("--json", metavar="FILE", help="file for the results as JSON")
    return parser.parse_args(arguments)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    options = _options(arguments)
    bench = Bench(options.model, options.layers, options.device)
    name = torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else "CPU"
    print(f"{options.model}, {bench.layers} layers, bfloat16, random weights; {name}, torch "
          f"{torch.__version__}, transformers {transformers.__version__}", flush=True)
    if NAME in options.experts:
        bench.prepare(options.table)
    errors = bench.errors(options.experts)
    for implementation, error in errors.items():
        print(f"{implementation}: error of the logits {'out of memory' if error is None else f'{error:.4f}'}")
    results = [result for batch in options.batch for result in bench.measure(options.experts, batch)]
    for line in lines(results):
        print(line)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"model": options.model, "layers": bench.layers, "device": name,
                       "torch": torch.__version__, "transformers": transformers.__version__, "errors": errors,
                       "results": [r._asdict() for r in results]}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
