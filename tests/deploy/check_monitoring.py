#!/usr/bin/env python3
"""Checks the Prometheus files and the Grafana dashboard: promtool accepts them and their queries, and a
moefarmd with a worker exports every metric and label that they use.

    check_monitoring.py SOURCE BUILD
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

DEADLINE_S = 60
SHAPES = """token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,\
doweight_stage1
4,2048,96,128,8,ActivationType.Silu,torch.bfloat16,torch.bfloat16,torch.bfloat16,QuantType.No,1,0
"""
PROMETHEUS_LABELS = {"job", "instance", "le"}


def fail(text):
    print(f"check_monitoring: {text}")
    sys.exit(1)


def get(port, path, data=None):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data)
    if data:
        request.add_header("Content-Type", "text/csv")
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return answer.read().decode()


def wait_for(condition, what):
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        answer = condition()
        if answer:
            return answer
        time.sleep(0.02)
    return fail(f"no {what} in {DEADLINE_S} s")


def metrics_of(build, folder):
    """Runs a batch on a farm. Returns the metrics in /metrics as {name: set of labels}."""
    ports = folder / "ports"
    daemon = subprocess.Popen([f"{build}/server/moefarmd", "--state", folder / "farm",
                               "--http", "127.0.0.1:0", "--hub", "127.0.0.1:0", "--port-file", ports],
                              stderr=subprocess.DEVNULL)
    worker = None
    try:
        wait_for(ports.exists, "moefarmd")
        at = dict(line.split("=") for line in ports.read_text().split())
        worker = subprocess.Popen([f"{build}/worker/moefarm-worker", "--coordinator",
                                   f"tcp://127.0.0.1:{at['hub']}", "--device", "sim:gfx942/304:0",
                                   "--spool", folder, "--lock-dir", folder], stderr=subprocess.DEVNULL)
        get(at["http"], "/api/v1/batches?classes=gfx942/304", SHAPES.encode())
        wait_for(lambda: '"state":"done"' in get(at["http"], "/api/v1/batches/1"), "end of the batch")
        text = wait_for(
            lambda: (lambda t: t if "busy_seconds_total{" in t else "")(get(at["http"], "/metrics")),
            "worker's time")
    finally:
        for process in (worker, daemon):
            if process:
                process.terminate()
                process.wait()
    named = {name: set() for name in re.findall(r"^# TYPE (\S+) (?:gauge|counter)", text, re.M)}
    for name in re.findall(r"^# TYPE (\S+) histogram", text, re.M):
        named |= {name + suffix: set() for suffix in ("_bucket", "_sum", "_count")}
    for name, labels in re.findall(r"^(\w+)\{(.*)\} ", text, re.M):
        named[name] |= set(re.findall(r"(\w+)=\"", labels))
    return named


def promtool(*words):
    done = subprocess.run(["promtool", "check", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(f"promtool check {words[0]}: {done.stdout}{done.stderr}")


def queries_of(dashboard):
    """Yields the panel and the text of all queries, as Grafana sends them to Prometheus."""
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "1m").replace("$job", "moefarm")


def check_names(where, query, named):
    used = set(re.findall(r"\bmoefarm_\w+", query))
    for name in used:
        if name not in named:
            fail(f"{where}: /metrics has no {name}")
    labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query))
    labels |= {name for names in re.findall(r"\bby \(([^)]*)\)", query) for name in re.split(r",\s*", names)}
    known = PROMETHEUS_LABELS.union(*(named[name] for name in used))
    if not labels <= known:
        fail(f"{where}: {used} have no {labels - known}")


def main():
    source, build = sys.argv[1:]
    if not shutil.which("promtool"):
        print("skipped: promtool is missing (package prometheus)")
        return 77
    folder = pathlib.Path(tempfile.mkdtemp(prefix="moefarm-monitoring."))
    try:
        shutil.copytree(f"{source}/deploy/monitoring", folder / "deploy")
        named = metrics_of(build, folder)
        # Replace the path of the token file, which exists on real hosts only
        config = (folder / "deploy/prometheus.yml").read_text()
        config = config.replace("/etc/prometheus/moefarm.token", os.devnull)
        (folder / "deploy/prometheus.yml").write_text(config)
        promtool("config", folder / "deploy/prometheus.yml")
        queries = list(queries_of(json.loads((folder / "deploy/grafana.json").read_text())))
        rules = [{"record": f"query:{i}", "expr": query} for i, (_, query) in enumerate(queries)]
        (folder / "queries.json").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
        promtool("rules", folder / "queries.json", folder / "deploy/moefarm-rules.yml")
        alerts = re.findall(r"^ +expr: (.*)$", (folder / "deploy/moefarm-rules.yml").read_text(), re.M)
        for where, query in queries + [("alert", query) for query in alerts]:
            check_names(where, query, named)
        print(f"{len(queries)} queries of the dashboard, {len(alerts)} alerts, {len(named)} metrics")
    finally:
        shutil.rmtree(folder)
    return 0


sys.exit(main())
