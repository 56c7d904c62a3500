#!/usr/bin/env python3
"""The farm's times against libfmoe's: what a table says of a row, and what a call of the production operator takes for it here and
now (fmoe_run, tests/bench/libfmoe_call.c), one figure a line: name value unit.

Tunes shapes of the demo (examples/qwen3_untuned_fmoe.csv) on a farm of its own, one by one, and has libfmoe run each one's row behind
it: what a shared machine's memory gives changes within minutes.

  libfmoe_over_farm.<layer>.T<n>   the call's median over the table's time, 1 is the same
  libfmoe_farm_median              median of |that - 1|, percent; 3 is the most that is asked for
  libfmoe_in_turn_median           the same against the row's pipeline timed as a race times it, in rounds of one of each: what is left
                                   of the difference where both meet the same minute of the machine
  libfmoe_call_adds                what a call takes beyond its pipeline alone, in those rounds: median of the rows, percent

  bench_libfmoe.py BUILD_FOLDER [--tokens 1,4] [--rounds N]
"""
import argparse
import csv
import os
import statistics
import subprocess
import sys

from bench_farm import Farm

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(ROOT, "examples", "qwen3_untuned_fmoe.csv")


def demo_shapes(tokens):
    """The header, and the rows of these token counts."""
    with open(DEMO, newline="", encoding="ascii") as f:
        rows = [",".join(row) + "\n" for row in csv.reader(f)]
    return rows[0], [r for r in rows[1:] if r.split(",")[0] in tokens]


def tune(farm, text):
    """The batch, when its task is done."""
    batch = farm.submit(text)
    farm.wait(batch)
    for task in farm.items(f"/api/v1/batches/{batch}/tasks"):
        if task["state"] != "done":
            sys.exit(f"bench_libfmoe: task {task['id']} {task['state']}: {task['reason']}")
    return batch


def run_table(build, farm, batch, rounds):
    """The batch's row by libfmoe: its key, the table's time, its pipeline's, the call's, and what that adds. The worker waits."""
    table = os.path.join(farm.folder, "tuned.csv")
    subprocess.run([f"{build}/cli/moefarm", "--url", farm.url, "export", "--batch", str(batch), "-o", table], check=True)
    done = subprocess.run([f"{build}/tests/libfmoe_call", table, str(rounds)], stdout=subprocess.PIPE, check=False, text=True)
    if done.returncode != 0:
        sys.exit(f"bench_libfmoe: libfmoe_call ended with {done.returncode}")
    key, table_us, pipeline_us, call_us, _, added, _ = done.stdout.split()
    return key, float(table_us), float(pipeline_us), float(call_us), float(added)


def name_of(shape):
    token, model_dim, inter_dim, *rest = shape.split(",")
    return f"H{model_dim}_I{inter_dim}_{rest[5].removeprefix('torch.')}_{rest[6].removeprefix('QuantType.')}.T{token}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--tokens", default="1,4,16,64", help="of each layer of the demo, which has 1 to 64")
    parser.add_argument("--rounds", type=int, default=41)
    args = parser.parse_args()
    head, shapes = demo_shapes(args.tokens.split(","))
    farm, off, in_turn, adds = Farm(args.build), [], [], []
    try:
        for shape in shapes:
            key, table_us, pipeline_us, call_us, added = run_table(args.build, farm, tune(farm, head + shape), args.rounds)
            off.append(abs(call_us / table_us - 1))
            in_turn.append(abs(call_us / pipeline_us - 1))
            adds.append(added)
            print(f"libfmoe_over_farm.{name_of(key)} {call_us / table_us:.4f} ratio", flush=True)
    finally:
        farm.stop()
    print(f"libfmoe_farm_rows {len(off)} rows")
    print(f"libfmoe_farm_median {100 * statistics.median(off):.3g} percent_of_3")
    print(f"libfmoe_in_turn_median {100 * statistics.median(in_turn):.3g} percent_of_3")
    print(f"libfmoe_call_adds {100 * statistics.median(adds):.3g} percent")


if __name__ == "__main__":
    main()
