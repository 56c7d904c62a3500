#!/usr/bin/env python3
"""Compare the times in a tuned table with calls of libfmoe (fmoe_run, tests/bench/libfmoe_call.c).

Tunes the demo's shapes (examples/qwen3_untuned_fmoe.csv) one by one on its own farm. libfmoe runs each row
right after the row was tuned, because the memory bandwidth of a shared machine changes within minutes.
Prints one figure per line: name value unit.

  libfmoe_over_farm.<layer>.T<n>   median time of the call divided by the table's time
  libfmoe_farm_median              median of |ratio - 1| over the rows, percent (limit: 3)
  libfmoe_in_turn_median           the same for the ratio to the row's pipeline, which is timed as in a race
                                   and interleaved with the calls, so that drift of the machine cancels out
  libfmoe_call_adds                time that a call adds to its pipeline in these rounds, median over the
                                   rows, percent

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
    """Return the header and the rows with these token counts."""
    with open(DEMO, newline="", encoding="ascii") as f:
        rows = [",".join(row) + "\n" for row in csv.reader(f)]
    return rows[0], [r for r in rows[1:] if r.split(",")[0] in tokens]


def tune(farm, text):
    """Submit a batch and return its id once its task is done."""
    batch = farm.submit(text)
    farm.wait(batch)
    for task in farm.items(f"/api/v1/batches/{batch}/tasks"):
        if task["state"] != "done":
            sys.exit(f"bench_libfmoe: task {task['id']} {task['state']}: {task['reason']}")
    return batch


def run_table(build, farm, batch, rounds):
    """Run the batch's row with libfmoe while the worker is idle.

    Returns its key, the times of the table, the pipeline and the call, and the time that the call adds.
    """
    table = os.path.join(farm.folder, "tuned.csv")
    subprocess.run([f"{build}/cli/moefarm", "--url", farm.url, "export", "--batch", str(batch), "-o", table],
                   check=True)
    done = subprocess.run([f"{build}/tests/libfmoe_call", table, str(rounds)], stdout=subprocess.PIPE,
                          check=False, text=True)
    if done.returncode != 0:
        sys.exit(f"bench_libfmoe: libfmoe_call failed with exit status {done.returncode}")
    key, table_us, pipeline_us, call_us, _, added, _ = done.stdout.split()
    return key, float(table_us), float(pipeline_us), float(call_us), float(added)


def name_of(shape):
    token, model_dim, inter_dim, *rest = shape.split(",")
    dtype, q_type = rest[5].removeprefix("torch."), rest[6].removeprefix("QuantType.")
    return f"H{model_dim}_I{inter_dim}_{dtype}_{q_type}.T{token}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--tokens", default="1,4,16,64",
                        help="token counts of each demo layer, from 1 to 64 (default: 1,4,16,64)")
    parser.add_argument("--rounds", type=int, default=41)
    args = parser.parse_args()
    head, shapes = demo_shapes(args.tokens.split(","))
    farm, off, in_turn, adds = Farm(args.build), [], [], []
    try:
        for shape in shapes:
            batch = tune(farm, head + shape)
            key, table_us, pipeline_us, call_us, added = run_table(args.build, farm, batch, args.rounds)
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
