#!/usr/bin/env python3
"""Benchmark a whole farm: start moefarmd and one CPU worker on loopback, tune a few shapes and read the API.

Prints one figure per line: name value unit.

  e2e_over_floor.<shape>.T<n>  the winner's end-to-end time divided by the layer's lower bound, which is the
                               larger of active expert bytes / mem_read_gbs and FLOPs / bf16_peak_gflops
  own_over_lib.<shape>.T<n>    time of the fastest pipeline without a library step divided by that of the
                               fastest pipeline with a library step, in one race
  space.<shape>.T<n>           number of measured steps
  space_worst_over_best.<shape>.T<n>
                               time of the slowest correct step divided by that of the fastest step with
                               the same ops; maximum over all sets of ops
  sum_vs_e2e_rank_corr         Spearman correlation of forecast and measured end-to-end times of the finalists
  busy_<phase>                 fraction of the worker's wall time
  turns_over_100ms             iterations of the writer's loop that took over 100 ms, including rankings

  bench_farm.py BUILD_FOLDER [--quick]
"""
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

COLUMNS = ("token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,"
           "use_g1u1,doweight_stage1")
BF16 = "torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No"
FP8 = "torch.bfloat16,torch.float8_e4m3fn,torch.float8_e4m3fn,"

# name: (model_dim, inter_dim, experts, topk, format columns, bytes per weight, token counts)
SHAPES = {
    "qwen3-30b-tp8-bf16": (2048, 96, 128, 8, BF16, 2, (1, 4, 16, 64, 1024)),
    "qwen3-30b-tp8-fp8": (2048, 96, 128, 8, FP8 + "QuantType.per_Token", 1, (1, 4, 16, 64)),
    "qwen3-30b-tp4-1x128": (2048, 192, 128, 8, FP8 + "QuantType.per_1x128", 1, (1, 4, 16, 64)),
    "qwen3-235b-tp8-bf16": (4096, 192, 128, 8, BF16, 2, (1, 4, 16)),
}
QUICK = {"qwen3-30b-tp8-bf16": SHAPES["qwen3-30b-tp8-bf16"][:6] + ((1, 4),)}


def emit(name, value, unit):
    print(f"{name} {value:.4g} {unit}", flush=True)


class Farm:
    """A farm in a temporary folder: moefarmd, started with additional options, and one CPU worker."""

    def __init__(self, build, *options):
        self.folder = tempfile.mkdtemp(prefix="moefarm-figures.")
        self.processes = []
        ports = os.path.join(self.folder, "ports")
        self.start("moefarmd", [f"{build}/server/moefarmd", "--state", f"{self.folder}/farm", "--http",
                                "127.0.0.1:0", "--hub", "127.0.0.1:0", "--port-file", ports, *options])
        lines = {}
        while not {"http", "hub"} <= lines.keys():
            self.check()
            time.sleep(0.02)
            if os.path.exists(ports):
                with open(ports, encoding="ascii") as f:
                    lines = dict(line.replace("=", " ").split() for line in f if line.strip())
        self.url = f"http://127.0.0.1:{lines['http']}"
        hub = f"tcp://127.0.0.1:{lines['hub']}"
        self.start("worker", [f"{build}/worker/moefarm-worker", "--coordinator", hub, "--device", "cpu:0",
                              "--name", "bench", "--spool", f"{self.folder}/spool"])

    def start(self, name, command):
        log = open(os.path.join(self.folder, name + ".log"), "wb")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.processes.append((name, process))

    def check(self):
        for name, process in self.processes:
            if process.poll() is not None:
                with open(os.path.join(self.folder, name + ".log"), encoding="utf-8", errors="replace") as f:
                    log = f.read()[-2000:]
                sys.exit(f"bench_farm: {name} exited with status {process.returncode}:\n{log}")

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)

    def items(self, path):
        """Yield every item of a list, page by page."""
        cursor, join = None, "&" if "?" in path else "?"
        while True:
            page = self.get(f"{path}{join}limit=1000" + (f"&cursor={cursor}" if cursor else ""))
            yield from page["items"]
            cursor = page["next"]
            if not cursor:
                return

    def submit(self, text, query=""):
        request = urllib.request.Request(f"{self.url}/api/v1/batches?name=bench{query}", data=text.encode(),
                                         headers={"Content-Type": "text/csv"}, method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            receipt = json.load(answer)
        if receipt["errors"]:
            sys.exit(f"bench_farm: the coordinator rejected rows: {receipt['errors']}")
        return receipt["batch"]

    def wait(self, batch):
        while self.get(f"/api/v1/batches/{batch}")["state"] == "open":
            self.check()
            time.sleep(0.2)

    def stop(self):
        for _, process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def ranks(values):
    order = sorted(range(len(values)), key=values.__getitem__)
    rank = [0.0] * len(values)
    for place, index in enumerate(order):
        rank[index] = place
    return rank


def spearman(a, b):
    a, b = ranks(a), ranks(b)
    mean = (len(a) - 1) / 2
    top = sum((x - mean) * (y - mean) for x, y in zip(a, b))
    return top / sum((x - mean) ** 2 for x in a)


def floor_us(shape, token, device):
    """Return the larger of expected active expert bytes / bandwidth and FLOPs / peak rate."""
    model_dim, inter_dim, experts, topk, _, weight_bytes, _ = shape
    active = experts * (1 - (1 - topk / experts) ** token)
    moved = active * 3 * model_dim * inter_dim * weight_bytes + token * model_dim * 4
    flops = 6 * token * topk * model_dim * inter_dim
    return max(moved / (device["mem_read_gbs"] * 1e3), flops / (device["peak_gflops"]["bf16"] * 1e3))


def name_of(task):
    """Return the name and the token count of a task's shape."""
    row = task["shape"]
    for name, shape in SHAPES.items():
        columns = dict(zip(COLUMNS.split(",")[5:10], ["", *shape[4].split(",")]))
        if (int(row["model_dim"]), int(row["inter_dim"])) == shape[:2] and row["q_type"] == columns["q_type"]:
            return name, int(row["token"])
    sys.exit(f"bench_farm: a task has an unknown shape: {row}")


def report_task(farm, task, device, pairs):
    name, token = name_of(task)
    finalists = [p for p in farm.items(f"/api/v1/tasks/{task['id']}/pipelines?finalists=1") if p["us"]]
    emit(f"e2e_over_floor.{name}.T{token}", task["us"] / floor_us(SHAPES[name], token, device), "ratio")

    best = {}
    for pipeline in finalists:
        library = any(step.startswith("onednn:") for step in pipeline["names"])
        best[library] = min(best.get(library, float("inf")), pipeline["us"])
    if len(best) == 2:
        emit(f"own_over_lib.{name}.T{token}", best[False] / best[True], "ratio")

    steps = list(farm.items(f"/api/v1/tasks/{task['id']}/steps"))
    spread = {}
    for step in steps:
        if step["status"] in ("ok", "slow") and step["us"]:
            spread.setdefault(step["covers"], []).append(step["us"])
    emit(f"space.{name}.T{token}", len(steps), "steps")
    emit(f"space_worst_over_best.{name}.T{token}", max(max(v) / min(v) for v in spread.values()), "ratio")
    if len(finalists) >= 5:
        pairs.append(spearman([p["forecast_us"] for p in finalists], [p["us"] for p in finalists]))


def table_of(shapes):
    text = io.StringIO()
    text.write(COLUMNS + "\n")
    for model_dim, inter_dim, experts, topk, formats, _, tokens in shapes.values():
        for token in tokens:
            text.write(f"{token},{model_dim},{inter_dim},{experts},{topk},ActivationType.Silu,"
                       f"{formats},1,0\n")
    return text.getvalue()


def tune(farm, shapes, query=""):
    """Tune the shapes. Return the tasks and the time this took in seconds."""
    began = time.monotonic()
    batch = farm.submit(table_of(shapes), query)
    farm.wait(batch)
    tasks = list(farm.items(f"/api/v1/batches/{batch}/tasks"))
    for task in tasks:
        if task["state"] != "done":
            sys.exit(f"bench_farm: task {task['id']} {task['state']}: {task['reason']}")
    return tasks, time.monotonic() - began


def turns_over_100ms(farm):
    """Return how many iterations of the writer's loop took over 100 ms, from its histogram."""
    with urllib.request.urlopen(farm.url + "/metrics", timeout=60) as answer:
        text = answer.read().decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    name = "moefarm_iteration_duration_seconds"
    return int(lines[name + "_count"]) - int(lines[name + '_bucket{le="0.1"}'])


def report_farm(build, shapes):
    farm = Farm(build)
    try:
        tasks, seconds = tune(farm, shapes)
        worker = next(farm.items("/api/v1/workers"))
        device = worker["device"]
        emit("farm_s", seconds, "s")
        emit("mem_read_gbs", device["mem_read_gbs"], "GB/s")
        emit("bf16_peak_gflops", device["peak_gflops"]["bf16"], "GFLOP/s")
        pairs = []
        for task in tasks:
            report_task(farm, task, device, pairs)
        if pairs:
            emit("sum_vs_e2e_rank_corr", sum(pairs) / len(pairs), "rho")
        for phase, share in worker["busy"].items():
            emit(f"busy_{phase}", share, "share")
        emit("turns_over_100ms", turns_over_100ms(farm), "turns")
    finally:
        farm.stop()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    shapes = QUICK if "--quick" in sys.argv else SHAPES
    report_farm(sys.argv[1], shapes)


if __name__ == "__main__":
    main()
