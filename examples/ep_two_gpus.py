#!/usr/bin/env python3
"""Expert parallelism with moefarm: a DeepSeek-V3-shaped layer whose experts are split over two GPUs.

    permute_with_ep     each rank sorts its tokens by expert: the rows of a rank's experts are adjacent
    all_to_all          rows and expert ids go to the rank that has the expert
    moefarm.Layer       with the form ep:FIRST/EXPERTS, so that the ids stay global
    all_to_all          results come back
    unpermute_with_ep   each token's rows are multiplied by their probabilities and added

Prints the time of each phase, and the error against one layer that has all experts. On GPUs the five phases
are then captured in one graph per rank, for the routing at hand.

usage: python3 examples/ep_two_gpus.py [--tokens 128] [--table FILE] …
       python3 examples/ep_two_gpus.py --device cpu --experts 16 --topk 4 --hidden 256 --inter 128
"""
from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.distributed as dist
import torch.multiprocessing

import moefarm
from moefarm import ops

RANKS = 2
# Largest relative error against one layer: rows are rounded to bfloat16 once more before they are added.
LIMIT = 0.01


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                        help="device type (default: cuda)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each rank (default: 128)")
    parser.add_argument("--experts", type=int, default=256, help="experts of both ranks (default: 256)")
    parser.add_argument("--topk", type=int, default=8, help="experts per token (default: 8)")
    parser.add_argument("--hidden", type=int, default=7168, help="hidden size (default: 7168)")
    parser.add_argument("--inter", type=int, default=2048, help="intermediate size (default: 2048)")
    parser.add_argument("--quant", choices=("per_1x128", "none"), default=None,
                        help="quantisation (default: per_1x128 on GPUs, none on the CPU)")
    parser.add_argument("--table", default=None, help="tuned table (default: none, fallback kernels)")
    parser.add_argument("--repeats", type=int, default=20, help="timed calls (default: 20)")
    return parser.parse_args()


class Clock:
    """Adds up the host time of phases. On a GPU, waits for the device before and after each phase."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.us = device, {}  # type: Tuple[torch.device, Dict[str, float]]

    def run(self, name: str, phase: Callable[[], Any]) -> Any:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        result = phase()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.us[name] = self.us.get(name, 0.0) + (time.perf_counter() - begin) * 1e6
        return result


def make_weights(args: argparse.Namespace, device: torch.device) -> Tuple[torch.Tensor, torch.Tensor]:
    """The weights of all experts, the same on every rank, drawn one expert after the other to save memory."""
    w1 = torch.empty(args.experts, 2 * args.inter, args.hidden, dtype=torch.bfloat16, device=device)
    w2 = torch.empty(args.experts, args.hidden, args.inter, dtype=torch.bfloat16, device=device)
    generator = torch.Generator(device).manual_seed(1)
    for e in range(args.experts):
        for w, fan_in in ((w1, args.hidden), (w2, args.inter)):
            w[e] = torch.randn(w.shape[1:], generator=generator, device=device) / fan_in ** 0.5
    return w1, w2


def make_layer(args: argparse.Namespace, device: torch.device, weights: Tuple[torch.Tensor, torch.Tensor],
               first: int, count: int, topk: int) -> moefarm.Layer:
    """A layer with the experts [first, first + count)."""
    form = "" if count == args.experts else f"ep:{first}/{args.experts}"
    layer = moefarm.Layer(args.table, model_dim=args.hidden, inter_dim=args.inter, experts=count, topk=topk,
                          quant=args.quant, form=form, max_tokens=4096, device=device)
    w1, w2 = (w[first:first + count] for w in weights)
    if args.quant == "none":
        layer.pack(w1.contiguous(), w2.contiguous())
        return layer
    (q1, s1, _), (q2, s2, _) = (ops.quantise(w, "fp8fn_128x128") for w in (w1, w2))
    layer.pack(q1, q2, s1, s2)
    return layer


class Exchange:
    """Which rows go from rank to rank for the routing `ids`, and the buffers that receive them."""

    def __init__(self, ids: torch.Tensor, experts: int, hidden: int, rank: int) -> None:
        per_rank = experts // RANKS
        counts = torch.bincount(ids.flatten() // per_rank, minlength=RANKS)
        every = [torch.empty_like(counts) for _ in range(RANKS)]
        dist.all_gather(every, counts)
        self.send: List[int] = counts.tolist()
        self.receive: List[int] = [int(counts_of[rank]) for counts_of in every]
        rows = sum(self.receive)
        self.x = torch.empty(rows, hidden, dtype=torch.bfloat16, device=ids.device)
        self.ids = torch.empty(rows, 1, dtype=torch.int32, device=ids.device)
        self.back = torch.empty(ids.numel(), hidden, dtype=torch.bfloat16, device=ids.device)

    def dispatch(self, rows: torch.Tensor, ids: torch.Tensor) -> None:
        dist.all_to_all_single(self.x, rows, self.receive, self.send)
        dist.all_to_all_single(self.ids, ids, self.receive, self.send)

    def combine(self, y: torch.Tensor) -> torch.Tensor:
        dist.all_to_all_single(self.back, y, self.send, self.receive)
        return self.back


def parallel_layer(args: argparse.Namespace, layer: moefarm.Layer, exchange: Exchange, x: torch.Tensor,
                   ids: torch.Tensor, probs: torch.Tensor, run: Callable[[str, Callable[[], Any]], Any]
                   ) -> torch.Tensor:
    n = ids.numel()

    def permute() -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows, inverse, _ = ops.permute_with_ep(x, ids, None, (0, n), num_experts=args.experts)
        sorted_ids = ops.permute_with_ep(ids.view(n, 1), ids.view(n, 1), None, (0, n),
                                         num_experts=args.experts)[0]
        return rows, inverse, sorted_ids

    rows, inverse, sorted_ids = run("permute", permute)
    run("all_to_all", lambda: exchange.dispatch(rows, sorted_ids))
    ones = torch.ones(exchange.ids.shape, device=x.device)
    y = run("layer", lambda: layer(exchange.x, exchange.ids, ones))
    back = run("all_to_all back", lambda: exchange.combine(y))
    out: torch.Tensor = run("unpermute", lambda: ops.unpermute_with_ep(back, inverse, probs))
    return out


def time_graph(call: Callable[[], torch.Tensor], repeats: int) -> Tuple[float, torch.Tensor]:
    """Microseconds of a replay of the call in a graph, and the result of the last replay."""
    graph = torch.cuda.CUDAGraph()
    call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        out = call()
    graph.replay()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e6 / repeats, out


def relative_error(y: torch.Tensor, expected: torch.Tensor) -> float:
    return float((y.float() - expected.float()).norm() / expected.float().norm())


def run_rank(rank: int, args: argparse.Namespace, rendezvous: str) -> None:
    device = torch.device(f"cuda:{rank}" if args.device == "cuda" else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", init_method=f"file://{rendezvous}",
                            rank=rank, world_size=RANKS)
    weights = make_weights(args, device)
    count = args.experts // RANKS
    layer = make_layer(args, device, weights, rank * count, count, 1)
    generator = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(args.tokens, args.hidden, generator=generator).bfloat16().to(device)
    logits = torch.randn(args.tokens, args.experts, generator=generator).to(device)
    probs, ids = ops.topk_sigmoid(logits, args.topk)
    exchange = Exchange(ids, args.experts, args.hidden, rank)

    def call(run: Callable[[str, Callable[[], Any]], Any]) -> torch.Tensor:
        return parallel_layer(args, layer, exchange, x, ids, probs, run)

    call(lambda name, phase: phase())
    dist.barrier()
    clock = Clock(device)
    for _ in range(args.repeats):
        out = call(clock.run)
    whole = make_layer(args, device, weights, 0, args.experts, args.topk)
    expected = whole(x, ids, probs)
    error = relative_error(out, expected)
    text = ", ".join(f"{name} {us / args.repeats:.0f}" for name, us in clock.us.items())
    print(f"rank {rank}: sends {exchange.send} rows, receives {exchange.receive}; us: {text}; relative error "
          f"against one layer {error:.4f}", flush=True)
    if device.type == "cuda":
        us, replayed = time_graph(lambda: call(lambda name, phase: phase()), args.repeats)
        error = max(error, relative_error(replayed, expected))
        print(f"rank {rank}: in a graph {us:.0f} us", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if not error < LIMIT:
        sys.exit(f"rank {rank}: relative error {error:.4f}, expected less than {LIMIT}")


def main() -> None:
    args = parse()
    if args.quant is None:
        args.quant = "per_1x128" if args.device == "cuda" else "none"
    if args.device == "cuda" and torch.cuda.device_count() < RANKS:
        sys.exit(f"{torch.cuda.device_count()} GPUs: expected {RANKS}, or --device cpu")
    if args.experts % RANKS != 0:
        sys.exit(f"--experts {args.experts}: expected a multiple of {RANKS}")
    with tempfile.TemporaryDirectory() as folder:
        spawn: Any = getattr(torch.multiprocessing, "spawn")  # torch declares no type for it
        spawn(run_rank, (args, os.path.join(folder, "rendezvous")), nprocs=RANKS)


if __name__ == "__main__":
    main()
