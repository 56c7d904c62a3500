#!/usr/bin/env python3
"""Measure the false positives of `moefarm compare` for a table compared with itself.

Compares 200 small layers of every format on the CPU. Each layer runs with the pipeline that production uses
without a table row. Every verdict FASTER or SLOWER is false. Other load on the machine is allowed, because
samples are paired.
Prints one figure per line: name value unit.

  compare_aa_false       rows with verdict FASTER or SLOWER, percent (limit: 2)
  compare_aa_ambiguous   rows with verdict AMBIGUOUS, percent
  compare_aa_rounds      median number of rounds per row
  compare_aa_seed        seed of the order within the rounds

  bench_compare.py BUILD_FOLDER [--rows N]
"""
import argparse
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

UNTUNED = ["token", "model_dim", "inter_dim", "expert", "topk", "act_type", "dtype", "q_dtype_a", "q_dtype_w",
           "q_type", "use_g1u1", "doweight_stage1"]
RESULT = ["block_m", "ksplit", "us1", "kernelName1", "err1", "us2", "kernelName2", "err2", "us", "run_1stage",
          "xbf16", "flat", "tflops", "bw", "pipeline"]
TOKENS = (1, 2, 4, 8, 16, 32, 64)
FORMATS = (
    ("torch.bfloat16", "torch.bfloat16", "QuantType.No"),
    ("torch.float8_e4m3fn", "torch.float8_e4m3fn", "QuantType.per_Token"),
    ("torch.int8", "torch.int8", "QuantType.per_Token"),
)


def shapes(n):
    """Return n shapes: small layers at several token counts."""
    layers = itertools.product(FORMATS, ((256, 128), (512, 128), (512, 256), (768, 128), (1024, 128)),
                               ((8, 2), (32, 4)))
    rows = [[token, model_dim, inter_dim, expert, topk, "ActivationType.Silu", "torch.bfloat16", *fmt, 1, 0]
            for fmt, (model_dim, inter_dim), (expert, topk) in layers for token in TOKENS]
    if n > len(rows):
        sys.exit(f"bench_compare: --rows {n}: expected at most {len(rows)}")
    return rows[:n]


def run(build, *words):
    """Run moefarm and return its JSON output. Exit status 1 reports a property of the rows, not a failure."""
    done = subprocess.run([f"{build}/cli/moefarm", *words, "--json"], stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 1):
        sys.exit(f"bench_compare: moefarm {' '.join(words)} failed with exit status {done.returncode}")
    return json.loads(done.stdout)


def device_class(build):
    done = subprocess.run([f"{build}/worker/moefarm-worker", "--list-devices"], stdout=subprocess.PIPE,
                          check=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("cpu:0"):
            return line.split()[1].rstrip(":").split("/")
    sys.exit(f"bench_compare: no cpu:0 in {done.stdout}")


def write_table(path, build, chosen):
    gfx, cu_num = device_class(build)
    with open(path, "w", newline="", encoding="ascii") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["gfx", "cu_num", *UNTUNED, *RESULT])
        for row in chosen:
            out.writerow([gfx, cu_num, *row["shape"].split(","), 8, 0, row["measured_us"], "a", "0.0%", 0.0,
                          "None", "0.0%", row["measured_us"], 1, 0, 0, 1.0, 1.0, row["pipeline"]])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--rows", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moefarm-compare.") as folder:
        untuned, tuned = os.path.join(folder, "untuned.csv"), os.path.join(folder, "tuned.csv")
        with open(untuned, "w", newline="", encoding="ascii") as f:
            csv.writer(f, lineterminator="\n").writerows([UNTUNED, *shapes(args.rows)])
        chosen = run(args.build, "run-config", "--shapes", untuned, "--rounds", "1")
        bad = [row for row in chosen if row["verdict"] != "OK"]
        if bad:
            sys.exit(f"bench_compare: {len(bad)} rows failed verification, the first: {bad[0]}")
        write_table(tuned, args.build, chosen)
        began = time.monotonic()
        result = run(args.build, "compare", "--aa", tuned)
    rows, verdicts = result["rows"], result["verdicts"]
    print(f"compare_aa_rows {len(rows)} rows")
    print(f"compare_aa_false {100 * (verdicts['FASTER'] + verdicts['SLOWER']) / len(rows):.3g} percent_of_2")
    print(f"compare_aa_ambiguous {100 * verdicts['AMBIGUOUS'] / len(rows):.3g} percent")
    print(f"compare_aa_rounds {statistics.median(row['rounds'] for row in rows)} rounds")
    print(f"compare_aa_seed {result['seed']:.0f} id")
    print(f"compare_aa_s {time.monotonic() - began:.3g} s")


if __name__ == "__main__":
    main()
