"""Times moefarm.ops on a GPU beside the chains of torch operators that they replace, each in a CUDA graph.

usage: PYTHONPATH=python MOEFARM_LIBRARY=…/libfmoe.so python3 tests/gpu/ops_times.py [--moves TOKENS …]

The chain of permute_with_ep is argsort, slice, floor division and gather; that of unpermute_with_ep is gather
(of the probabilities), multiplication, floor division and index_add. All run in bfloat16 with H = 7168, k = 8
and 256 experts. Rates count the minimum traffic, each token and each row once, and are printed as a
percentage of the rate of a 1 GB copy in device memory."""
from __future__ import annotations

import argparse
import time
from typing import Any, Callable, List

import torch

from moefarm import ops

H, K, E = 7168, 8, 256
IN_GRAPH = 20  # calls per graph
make_stream: Any = torch.cuda.Stream  # torch declares no types for these
make_event: Any = torch.cuda.Event


def graph_us(call: Callable[[], object]) -> float:
    """Median microseconds of a call in a graph, over 15 replays."""
    stream = make_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(IN_GRAPH):
            call()
    graph.replay()
    times: List[float] = []
    for _ in range(15):
        start, end = make_event(enable_timing=True), make_event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / IN_GRAPH)
    return sorted(times)[len(times) // 2]


def eager_us(call: Callable[[], object], n: int = 200) -> float:
    """Host microseconds of a call, without waiting for the device."""
    call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(n):
        call()
    used = (time.perf_counter() - begin) / n * 1e6
    torch.cuda.synchronize()
    return used


def chain(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    order = torch.argsort(ids.flatten(), dim=0, stable=True)[0:ids.numel()]
    return x.index_select(0, order // K)


def chain_back(rows: torch.Tensor, order: torch.Tensor, probs: torch.Tensor, tokens: int) -> torch.Tensor:
    values = rows * probs.index_select(0, order).unsqueeze(1)
    out = torch.zeros(tokens, H, dtype=torch.bfloat16, device=rows.device)
    return out.index_add_(0, order // K, values)


def copy_rate() -> float:
    """Bytes read and written per microsecond by a copy of 1 GB."""
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.numel() / graph_us(lambda: y.copy_(x))


def moves(tokens: int, rate: float) -> None:
    torch.manual_seed(1)
    x = torch.randn(tokens, H, device="cuda").bfloat16()
    ids = torch.rand(tokens, E, device="cuda").argsort(1)[:, :K].int().contiguous()
    probs = torch.rand(tokens, K, device="cuda")
    traffic = tokens * H * 2 * (1 + K)
    rows, inverse, _ = ops.permute_with_ep(x, ids, None, (0, tokens * K), num_experts=E)
    order = torch.argsort(ids.flatten(), dim=0, stable=True)
    half = probs.flatten().bfloat16()
    for name, ours, theirs in (
            ("permute", lambda: ops.permute_with_ep(x, ids, None, (0, tokens * K), num_experts=E),
             lambda: chain(x, ids)),
            ("unpermute", lambda: ops.unpermute_with_ep(rows, inverse, probs),
             lambda: chain_back(rows, order, half, tokens))):
        us, chain_us, host = graph_us(ours), graph_us(theirs), eager_us(ours)
        print(f"{name:10s} T={tokens:6d} ours {us:9.2f} us  chain {chain_us:9.2f} us  ratio "
              f"{chain_us / us:5.2f}  {traffic / us / 1e6:5.2f} TB/s = {traffic / us / rate:4.0%} of a copy  "
              f"host {host:5.1f} us", flush=True)


def others(tokens: int, rate: float) -> None:
    torch.manual_seed(2)
    x = torch.randn(tokens, H, device="cuda").bfloat16()
    logits, bias = torch.randn(tokens, E, device="cuda"), torch.randn(E, device="cuda")
    ids = torch.rand(tokens, E, device="cuda").argsort(1)[:, :K].int().contiguous()
    weights = torch.rand(tokens, K, device="cuda")
    map = torch.zeros(tokens, E, dtype=torch.bool, device="cuda").scatter_(1, ids.long(), True)
    print(f"T={tokens:6d} align {graph_us(lambda: ops.moe_align_block_size(ids, 64, E)):7.2f} us  "
          f"moe_sorting {graph_us(lambda: ops.moe_sorting(ids, weights, E, H)):7.2f} us  "
          f"moe_permute {graph_us(lambda: ops.moe_permute(x, None, ids, E)):8.2f} us  "
          f"permute (map) {graph_us(lambda: ops.permute(x, map, None, tokens * K)):8.2f} us", flush=True)
    print(f"T={tokens:6d} topk_sigmoid, 8 groups "
          f"{graph_us(lambda: ops.topk_sigmoid(logits, K, bias, True, 8, 4)):7.2f} us  topk_softmax "
          f"{graph_us(lambda: ops.topk_softmax(logits, K, True)):7.2f} us (torch's softmax and topk "
          f"{graph_us(lambda: logits.softmax(-1).topk(K, -1)):7.2f} us)", flush=True)
    for format in ("fp8fn_128", "fp8fn_token", "fp8fn_tensor", "mxfp4", "nvfp4"):
        factor = ops.nvfp4_factor(x) if format == "nvfp4" else None
        us = graph_us(lambda: ops.quantise(x, format, factor))
        print(f"T={tokens:6d} quantise {format:13s} {us:8.2f} us, reads {x.numel() * 2 / us / rate:4.0%} of "
              "a copy's rate", flush=True)


def formats(rate: float) -> None:
    w = torch.randint(0, 255, (32, 4096, 3584), dtype=torch.uint8, device="cuda")
    scales = torch.randint(0, 255, (32, 4096, 224), dtype=torch.uint8, device="cuda")
    for name, x, call in (("shuffle 16x16", w, lambda: ops.shuffle(w, "16x16")),
                          ("shuffle a16w4", w, lambda: ops.shuffle(w, "a16w4")),
                          ("swizzle_scales", scales, lambda: ops.swizzle_scales(scales))):
        us = graph_us(call)
        print(f"{name} of {x.numel() / 1e6:.0f} MB: {us:.1f} us, {2 * x.numel() / us / rate:.0%} of a copy")


def check_replays() -> None:
    """A graph that is replayed with other routing gives the results of the other routing."""
    for tokens in (64, 1024):
        x = torch.randn(tokens, H, device="cuda").bfloat16()
        ids = torch.rand(tokens, E, device="cuda").argsort(1)[:, :K].int().contiguous()
        n = tokens * K
        ops.permute_with_ep(x, ids, None, (0, n), num_experts=E)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            rows, inverse, _ = ops.permute_with_ep(x, ids, None, (0, n), num_experts=E)
            back = ops.unpermute_with_ep(rows, inverse, None, K)
        for seed in range(3):
            torch.manual_seed(seed)
            ids.copy_(torch.rand(tokens, E, device="cuda").argsort(1)[:, :K])
            graph.replay()
            assert torch.equal(rows, chain(x, ids)), "replay: rows"
            assert torch.equal(back, x * K), "replay: sums"
    print("replays with other routing: equal")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--moves", type=int, nargs="+",
                        help="only permute and unpermute, for these token counts")
    tokens_given = parser.parse_args().moves
    print(torch.cuda.get_device_name(), torch.__version__)
    check_replays()
    rate = copy_rate()
    print(f"copy: {rate / 1e6:.2f} TB/s")
    for tokens in tokens_given or (1, 64, 256, 1024, 4096, 16384):
        moves(tokens, rate)
    if tokens_given:
        return
    for tokens in (64, 1024, 16384):
        others(tokens, rate)
    formats(rate)


if __name__ == "__main__":
    main()
