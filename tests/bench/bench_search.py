#!/usr/bin/env python3
"""What the race gives up against exhaustive search, and what it saves, on the CPU, one figure a line: name value unit.

Both searches tune the same shapes, each in a farm of its own. Exhaustive: every step gets every gate and every sample, and of the
64 cheapest pipelines as many are raced as a race holds (32 over all layouts), with as many seconds for each as the race's own
finalists have. Then the two winners run against each other in turn (`moefarm compare`); one and the same pipeline is level with itself.

  search_regret.<shape>.T<n>      time of the race's winner over that of exhaustive search's, less one, percent; 0.5 is the most
                                  that is asked for
  search_regret_pm.<shape>.T<n>   half of the interval of that figure, percent: what the machine lets it be told to
  search_device_share.<shape>     device seconds (gates and timing) of the race over exhaustive search's; 0.25 is the most
  search_<phase>_share.<shape>    the same of each of the two, and search_<phase>_s the race's seconds
  search_calls_share.<shape>      results that were sampled in full, race over exhaustive

  bench_search.py BUILD_FOLDER [--quick]
"""
import csv
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request

from bench_farm import QUICK, Farm, emit, tune

FINALISTS, EXHAUSTIVE_FINALISTS, RACE_S = 8, 64, 0.4
PHASES = ("verify", "timing")
SHAPES = {
    "qwen3-30b-tp8-bf16": (2048, 96, 128, 8, "torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No", 2, (1, 16, 64)),
    "qwen3-30b-tp8-fp8": (2048, 96, 128, 8, "torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,QuantType.per_Token",
                          1, (1, 16, 64)),
}


def device_seconds(farm):
    """Of the worker so far by phase; its next beats bring what it had not told."""
    last = None
    while True:
        busy = next(farm.items("/api/v1/workers"))["busy_s"]
        now = {phase: busy[phase] for phase in PHASES}
        if now == last:
            return now
        last = now
        time.sleep(2.5)


def search(build, shapes, options, query, path):
    """Tunes the shapes, writes the table, and returns what the device was busy for and how many steps were sampled in full."""
    farm = Farm(build, *options)
    try:
        tasks, _ = tune(farm, shapes, query)
        with urllib.request.urlopen(farm.url + "/api/v1/export/tuned_fmoe.csv", timeout=60) as answer:
            text = answer.read().decode()
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        whole = sum(step["status"] == "ok" for task in tasks for step in farm.items(f"/api/v1/tasks/{task['id']}/steps"))
        return device_seconds(farm), whole
    finally:
        farm.stop()


def rows_of(path):
    """Pipelines by token count."""
    with open(path, encoding="utf-8", newline="") as f:
        return {int(row["token"]): row["pipeline"] for row in csv.DictReader(io.StringIO(f.read()))}


def compare(build, old, new):
    """The change of each row, by token count."""
    done = subprocess.run([f"{build}/cli/moefarm", "compare", old, new, "--max-rounds", "768", "--min-effect", "0.005",
                           "--seconds", "60", "--json"], stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"bench_search: moefarm compare ended with {done.returncode}")
    return {int(row["shape"].split(",")[0]): row for row in json.loads(done.stdout)["rows"]}


def report(build, name, shape, folder):
    race, exhaustive = (os.path.join(folder, f"{name}.{which}.csv") for which in ("race", "exhaustive"))
    race_s, race_whole = search(build, {name: shape}, (), f"&topk={FINALISTS}&regret=none", race)
    all_s, all_whole = search(build, {name: shape}, ("--race-s", str(RACE_S * EXHAUSTIVE_FINALISTS / FINALISTS)),
                              f"&search=exhaustive&topk={EXHAUSTIVE_FINALISTS}&regret=none", exhaustive)
    won, best, rows = rows_of(race), rows_of(exhaustive), compare(build, exhaustive, race)
    for token in sorted(won):
        change = rows[token]["change"]
        same = won[token] == best[token]
        emit(f"search_regret.{name}.T{token}", 0 if same else 100 * change["mid"], "percent_of_0.5")
        emit(f"search_regret_pm.{name}.T{token}", 0 if same else 50 * (change["high"] - change["low"]), "percent")
    emit(f"search_device_share.{name}", sum(race_s.values()) / sum(all_s.values()), "ratio_of_0.25")
    for phase in PHASES:
        emit(f"search_{phase}_share.{name}", race_s[phase] / all_s[phase], "ratio")
        emit(f"search_{phase}_s.{name}", race_s[phase], "s")
    emit(f"search_calls_share.{name}", race_whole / all_whole, "ratio")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory(prefix="moefarm-search.") as folder:
        for name, shape in (QUICK if "--quick" in sys.argv else SHAPES).items():
            report(sys.argv[1], name, shape, folder)


if __name__ == "__main__":
    main()
