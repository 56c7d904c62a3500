"""Measures tokens per second of a transformers model with moefarm's experts and with transformers' own.

    python3 -m moefarm.bench --table tuned_fmoe.csv                        # Qwen3-30B-A3B, 6 layers, on a GPU
    python3 -m moefarm.bench --model mixtral-8x7b --layers 2 --batch 1,16
    python3 -m moefarm.bench --model small --device cpu

All run in one process. The model has the sizes of the named model, fewer layers and random weights. A step is
a forward of one token per sequence, without a key-value cache. `forward` is the step as Python issues it;
`graph` is a replay of the step in a CUDA graph. The rate is that of the faster one. Errors are relative to
`eager`."""
from __future__ import annotations

import argparse
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
SEQUENCES, PROMPT = 4, 33  # of the tokens whose logits are compared
WARMUP, REPEATS, TARGET_S = 3, 5, 0.1


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
        self.prompt = self._tokens(SEQUENCES, PROMPT)
        self.expected: Optional[torch.Tensor] = None

    def _tokens(self, *shape: int) -> torch.Tensor:
        return torch.randint(0, self.config.vocab_size, shape, device=self.device)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def select(self, implementation: str, table: Optional[str]) -> None:
        """Packing moefarm's layers is final, so select moefarm last."""
        if implementation == NAME:
            prepare(self.model, table)
        else:
            self.model.set_experts_implementation(implementation)

    def error(self, implementation: str) -> Optional[float]:
        """Relative error of the logits. None: there is no `eager` to compare with."""
        with torch.no_grad():
            logits = self.model(input_ids=self.prompt, use_cache=False).logits.float()
        if implementation == "eager":
            self.expected = logits
        if self.expected is None:
            return None
        return float((logits - self.expected).norm() / self.expected.norm())

    def time_ms(self, step: Callable[[], Any]) -> float:
        """Median time of a step over several runs of about 0.1 s."""
        for _ in range(WARMUP):
            step()
        self._synchronize()
        start = time.perf_counter()
        step()
        self._synchronize()
        n = max(1, min(200, round(TARGET_S / (time.perf_counter() - start))))
        samples = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            for _ in range(n):
                step()
            self._synchronize()
            samples.append((time.perf_counter() - start) / n * 1e3)
        return statistics.median(samples)

    def capture(self, step: Callable[[], Any]) -> Any:
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

    def measure(self, implementation: str, batch: int) -> Result:
        tokens = self._tokens(batch, 1)

        def step() -> Any:
            return self.model(input_ids=tokens, use_cache=False)

        forward = graph_ms = None
        note = ""
        with torch.no_grad():
            try:
                forward = self.time_ms(step)
                if self.device.type == "cuda" and implementation not in NOT_CAPTURED:
                    graph = self.capture(step)
                    graph_ms = self.time_ms(graph.replay)
            except torch.OutOfMemoryError:
                note = "out of memory"
            except RuntimeError as error:
                note = " ".join(str(error).split())[:60]
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return Result(implementation, batch, forward, graph_ms, note)


def _milliseconds(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.2f}"


def lines(results: Sequence[Result], baseline: str = "grouped_mm") -> Iterator[str]:
    """The table, one row per batch size and implementation."""
    yield f"{'batch':>5}  {'experts':<11} {'forward ms':>10} {'graph ms':>9} {'tokens/s':>10} {'ratio':>6}"
    rates = {(r.batch, r.implementation): r.rate() for r in results}
    for r in sorted(results, key=lambda result: result.batch):
        base = rates.get((r.batch, baseline))
        ratio = f"{r.rate() / base:.2f}" if base else "-"
        yield (f"{r.batch:>5}  {r.implementation:<11} {_milliseconds(r.forward_ms):>10} "
               f"{_milliseconds(r.graph_ms):>9} {r.rate():>10,.0f} {ratio:>6}  {r.note}").rstrip()
    yield f"ratio: tokens/s divided by that of {baseline}"


def _numbers(text: str) -> List[int]:
    numbers = [int(part) for part in text.split(",")]
    if not numbers or min(numbers) < 1:
        raise ValueError
    return numbers


def _implementations(text: str) -> List[str]:
    """In the order of IMPLEMENTATIONS: `eager` first, because it is the reference; moefarm last."""
    names = text.split(",")
    if not set(names) <= set(IMPLEMENTATIONS):
        raise ValueError
    return [name for name in IMPLEMENTATIONS if name in names]


def _options(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m moefarm.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="qwen3-30b-a3b",
                        help="sizes of the model (default: qwen3-30b-a3b)")
    parser.add_argument("--layers", type=int, help="number of layers (default: 2 to 6, by model)")
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
    results, errors = [], {}
    for implementation in options.experts:
        bench.select(implementation, options.table)
        errors[implementation] = error = bench.error(implementation)
        if error is not None and implementation != "eager":
            print(f"{implementation}: error of the logits {error:.4f}", flush=True)
        results += [bench.measure(implementation, batch) for batch in options.batch]
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
