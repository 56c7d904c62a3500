"""Prints the results of check_python_gpu.sh from the farm's API.

usage: python_gpu_table.py planted|board TASK
       python_gpu_table.py peers BATCH

planted: one line per planted candidate: OK or FAIL, name, status, time and reason. Ends with status 1 if a
line says FAIL. board: the steps of torch_grouped with status and time, and whether the whole layer is
correct. peers: for each task of a batch the winner of each consumer, and for each Python family its best
candidate and the reasons of the others. Ends with status 1 if a family has no correct candidate for a task
that it offers candidates for."""
from __future__ import annotations

import collections
import json
import os
import re
import sys
import urllib.request
from typing import Any, Dict, List

# candidate: statuses that are right, and a pattern of the reason
EXPECTED = {
    "ok": ("ok", "^$"),
    "wrong": ("wrong", ""),
    "nan_row": ("wrong", "not finite"),
    "past_end": ("wrong", "guard: .* past the end of y"),
    "sleep": ("ok", "^$"),
    "own_time": ("ok", "^$"),
    "item": ("ok", "timed eagerly"),
    "after_item": ("ok", "^$"),
    "other_stream": ("unsupported|wrong", ""),
    "part_on_other_stream": ("unsupported|wrong", ""),
    "default_stream": ("unsupported|wrong", ""),
    "after_default": ("ok", "^$"),
    "empty": ("unsupported", "no kernels"),
    "crash": ("crash|quarantined", ""),
    "hang": ("hang|quarantined", ""),
    "freed_graph": ("crash|unsupported|wrong|hang|quarantined", ""),
    "z_last": ("ok", "^$"),
}
TIMED = ("sleep", "own_time", "after_item", "after_default", "z_last")
LIKE_OK = 1.3  # times of the candidates in TIMED are at most this multiple of that of `ok`


PEERS = ("torch_grouped", "deepgemm", "lmdeploy", "vllm", "sglang")
SHOWN = 2  # reasons of a family
COLUMNS = ("token", "model_dim", "inter_dim", "expert", "topk", "q_dtype_w", "q_type")


def get(path: str) -> Dict[str, Any]:
    with urllib.request.urlopen(f"{os.environ['MOEFARM_URL']}/api/v1/{path}", timeout=20) as reply:
        answer: Dict[str, Any] = json.load(reply)
    return answer


def steps(task: str, family: str) -> List[Dict[str, Any]]:
    items: List[Dict[str, Any]] = get(f"tasks/{task}/steps?limit=500&family={family}")["items"]
    return items


def verdict(step: Dict[str, Any], ok_us: float) -> str:
    statuses, pattern = EXPECTED[step["name"]]
    right = (re.fullmatch(statuses, step["status"] or "") is not None
             and re.search(pattern, step["reason"] or "") is not None)
    if right and step["name"] in TIMED:
        right = ok_us / LIKE_OK <= (step["us"] or 0) <= ok_us * LIKE_OK
    return "OK  " if right else "FAIL"


def line(step: Dict[str, Any]) -> str:
    us = "" if step["us"] is None else f"{step['us']:.2f} us"
    return f"{step['name']:22} {step['status'] or 'no result':12} {us:>12}  {step['reason'] or ''}"


def show_peer(family: str, offered: List[Dict[str, Any]]) -> bool:
    """Returns false if the family has candidates and none is correct."""
    counts = collections.Counter(step["status"] or "no result" for step in offered)
    correct = [step for step in offered if step["status"] == "ok" and step["us"]]
    whole = [step for step in correct if not step["name"].startswith("gemm")]
    best = min(whole, key=lambda step: float(step["us"]), default=None)
    by_name = {step["name"]: step["us"] for step in whole}
    print(f"    {family:14}", f"{best['us']:.1f} us {best['name']}" if best else "none correct",
          f"(default {by_name['default']:.1f} us)" if "default" in by_name else "",
          ", ".join(f"{n} {status}" for status, n in counts.items()))
    reasons = collections.Counter(step["reason"] for step in offered if step["status"] not in ("ok", "slow"))
    for reason, n in reasons.most_common(SHOWN):
        print(f"        {n} x {(reason or '')[:200]}")
    return bool(correct)


def show_task(task: Dict[str, Any]) -> bool:
    known = get(f"tasks/{task['id']}")
    shape = ",".join(str(known["shape"][column]) for column in COLUMNS)
    print(f"  task {task['id']}: {task['state']} {shape} {task.get('reason') or ''}"[:240])
    for consumer in known.get("consumers", []):
        us = f"{consumer['us']:.1f} us" if consumer.get("us") else consumer.get("reason")
        print(f"    for {consumer['consumer']:10} {us}  {' + '.join(consumer.get('winner') or [])}"[:240])
    good = True
    for family in PEERS:
        offered = steps(str(task["id"]), family)
        if any(step["status"] for step in offered):
            good = show_peer(family, offered) and good
    return good


def main() -> int:
    kind, task = sys.argv[1:3]
    if kind == "peers":
        tasks = get(f"batches/{task}/tasks?limit=500")["items"]
        return 0 if all([show_task(one) for one in tasks]) else 1
    if kind == "board":
        offered = steps(task, "torch_grouped")
        for step in offered:
            print(f"  torch_grouped: {line(step)}")
        is_ok = any(s["name"].endswith("grouped_mm") and s["status"] == "ok" for s in offered)
        print("OK  " if is_ok else "FAIL", "torch's whole layer is correct and timed")
        return 0 if is_ok else 1
    found = {step["name"]: step for step in steps(task, "planted")}
    ok_us = found.get("ok", {}).get("us") or 0
    failed = 0
    for name in EXPECTED:
        step = found.get(name, {"name": name, "status": None, "us": None, "reason": "not in the list"})
        said = verdict(step, ok_us)
        failed += said == "FAIL"
        print(said, line(step))
    print(f"{len(EXPECTED) - failed} of {len(EXPECTED)} planted candidates are judged correctly")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
