#!/usr/bin/env python3
"""Time the operator chains of bench_moves in PyTorch, replayed from a CUDA graph (no host time).

    bench_chain.py      runs on the first GPU; exit status 77 without PyTorch or a GPU

The permute chain is argsort of the chosen experts, slice, division by topk, and gather of rows. The unpermute
chain is argsort of that order, gather, multiplication by the weights, and sum over a token's slots. Rows are
bf16, with 8 slots per token and uniform routing. Calls rotate over sets of buffers that together exceed the
L2 cache. Prints one line per chain: `name value unit`.
"""
import sys

try:
    import torch
except ImportError:
    torch = None
if torch is None or not torch.cuda.is_available():
    print("bench_chain: requires PyTorch and a GPU", file=sys.stderr)
    sys.exit(77)

TOPK, SAMPLES, SETS_MAX, COLD_BYTES = 8, 9, 64, 400 << 20


def permute(s):
    order = torch.argsort(s["ids"].view(-1), stable=True)[: s["ids"].numel()]
    tokens = torch.div(order, TOPK, rounding_mode="floor")
    return order, torch.index_select(s["x"], 0, tokens)


def unpermute(s):
    inverse = torch.argsort(s["order"])
    rows = torch.index_select(s["rows"], 0, inverse)
    weighted = rows.view(-1, TOPK, rows.shape[1]) * s["weights"].unsqueeze(-1)
    return weighted.sum(dim=1).to(torch.bfloat16)


def median_us(call, sets):
    """Return the median time of one call, from a graph that makes at least one call per buffer set."""
    for s in sets:  # warm-up: first calls allocate memory and select kernels
        call(s)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    n = max(16, len(sets))
    with torch.cuda.graph(graph):
        kept = [call(sets[i % len(sets)]) for i in range(n)]
    us = []
    for i in range(SAMPLES + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i > 0:
            us.append(begin.elapsed_time(end) * 1000 / n)
    del kept
    return sorted(us)[SAMPLES // 2]


def sets_of(token, model_dim, expert):
    n = max(1, min(SETS_MAX, COLD_BYTES // (token * model_dim * 2 * (TOPK + 1)) + 1))
    sets = []
    for _ in range(n):
        s = {"x": torch.randn(token, model_dim, device="cuda", dtype=torch.bfloat16)}
        s["ids"] = torch.rand(token, expert, device="cuda").topk(TOPK).indices.to(torch.int32)
        s["weights"] = torch.rand(token, TOPK, device="cuda", dtype=torch.bfloat16)
        s["order"], s["rows"] = permute(s)
        sets.append(s)
    return sets


def main():
    print(f"bench_chain: {torch.cuda.get_device_name()}, PyTorch {torch.__version__}", file=sys.stderr)
    torch.manual_seed(1)
    for model_dim, expert in ((2048, 128), (7168, 256)):
        for token in (1, 16, 64):
            sets = sets_of(token, model_dim, expert)
            for name, call in (("permute", permute), ("unpermute", unpermute)):
                print(f"chain_{name}.H{model_dim}.T{token} {median_us(call, sets):.2f} us")


main()
