#!/usr/bin/python3
"""Checks the Kubernetes manifests: API schema (tests/data/kubernetes), values whose form the schema leaves
open, the Pod Security Standard "restricted", which the namespace enforces, and agreement with the programs:
probes use routes of moefarmd, options exist, named ports and volumes exist, and the Containerfile builds the
images. Then checks that planted mistakes are found.

    check_manifests.py SOURCE BUILD
"""
import copy
import json
import pathlib
import re
import subprocess
import sys

try:
    import jsonschema
    import yaml
except ImportError as missing:
    print(f"skipped: {missing} (packages python3-jsonschema and python3-yaml)")
    sys.exit(77)

KINDS = {("v1", "Namespace"): "core.v1.Namespace", ("v1", "Service"): "core.v1.Service",
         ("apps/v1", "StatefulSet"): "apps.v1.StatefulSet",
         ("networking.k8s.io/v1", "NetworkPolicy"): "networking.v1.NetworkPolicy"}
QUANTITY = r"\d+(\.\d+)?(m|[kMGTPE]i?)?"
NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
# Fields whose values the schema leaves open: the field's name, pattern of its values
VALUES = {"cpu": QUANTITY, "memory": QUANTITY, "storage": QUANTITY, "nvidia.com/gpu": r"\d+",
          "scheme": "HTTPS?", "protocol": "TCP|UDP|SCTP", "podManagementPolicy": "OrderedReady|Parallel",
          "fsGroupChangePolicy": "OnRootMismatch|Always", "policyTypes": "Ingress|Egress",
          "accessModes": "ReadWrite(Once|OncePod|Many)|ReadOnlyMany", "clusterIP": r"None|[0-9a-f.:]+",
          "name": NAME, "namespace": NAME, "serviceName": NAME, "secretName": NAME, "drop": "[A-Z_]+"}
ENVIRONMENT_NAME = "[A-Za-z_][A-Za-z0-9_]*"
VOLUME_TYPES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
                "projected", "secret"}


def schema_errors(manifest, definitions):
    """Lists what Kubernetes' API schema says about a manifest."""
    kind = KINDS.get((manifest.get("apiVersion"), manifest.get("kind")))
    if not kind:
        return [f"{manifest.get('apiVersion')} {manifest.get('kind')} is not in {KINDS.keys()}"]
    checker = jsonschema.Draft202012Validator({"$ref": f"#/$defs/io.k8s.api.{kind}", **definitions})
    return [f"{error.json_path}: {error.message}" for error in checker.iter_errors(manifest)]


def value_errors(at, value, pattern=None):
    """Lists values that do not match the pattern of their field."""
    if isinstance(value, dict):
        patterns = {**VALUES, "name": ENVIRONMENT_NAME} if at.split(".")[-1].startswith("env[") else VALUES
        return [error for key, item in value.items()
                for error in value_errors(f"{at}.{key}", item, patterns.get(key))]
    if isinstance(value, list):
        return [error for i, item in enumerate(value)
                for error in value_errors(f"{at}[{i}]", item, pattern)]
    wrong = pattern and value is not None and not re.fullmatch(pattern, str(value))
    return [f"{at}: {value!r} does not match {pattern}"] if wrong else []


def security_errors(pod):
    """Lists violations of the Pod Security Standard "restricted"."""
    errors = [f"{key} is set" for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    for volume in pod.get("volumes", []):
        kinds = volume.keys() - VOLUME_TYPES - {"name"}
        errors += [f"volume {volume['name']} has the type {kind}" for kind in kinds]
    for container in pod["containers"] + pod.get("initContainers", []):
        own = container.get("securityContext", {})
        both = {**pod.get("securityContext", {}), **own}
        if own.get("allowPrivilegeEscalation") is not False:
            errors.append("allowPrivilegeEscalation is not false")
        if own.get("privileged"):
            errors.append("the container is privileged")
        if own.get("capabilities", {}).get("drop") != ["ALL"] or own.get("capabilities", {}).get("add"):
            errors.append("a capability is kept")
        if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
            errors.append("the container may run as root")
        if both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            errors.append("no seccomp profile")
        if any(port.get("hostPort") for port in container.get("ports", [])):
            errors.append("a port of the host is used")
    return errors


def help_of(program):
    """Returns the options of a program, from its --help."""
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--([a-z-]+)", text))


def container_errors(container, volumes, programs):
    """Lists where a container disagrees with the programs, its own ports and the pod's volumes."""
    errors = []
    ports = {port["name"] for port in container.get("ports", [])}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if probe in container:
            get = container[probe]["httpGet"]
            if get["path"] not in programs["routes"]:
                errors.append(f"{probe}: moefarmd has no route {get['path']}")
            if get["port"] not in ports:
                errors.append(f"{probe}: no port {get['port']}")
    errors += [f"no volume {mount['name']}" for mount in container["volumeMounts"]
               if mount["name"] not in volumes]
    options = programs["images"].get(container["image"], set())
    errors += [f"{container['image']} has no option {word}" for word in container["args"]
               if word.split("=")[0].removeprefix("--") not in options]
    if f"-t {container['image']} " not in programs["containerfile"]:
        errors.append(f"the Containerfile does not build the image {container['image']}")
    return errors


def set_errors(manifest, programs):
    """Lists what is wrong with a StatefulSet beyond its schema."""
    spec = manifest["spec"]
    pod = spec["template"]["spec"]
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
    errors = security_errors(pod)
    for container in pod["containers"]:
        errors += container_errors(container, volumes, programs)
    if spec["selector"]["matchLabels"].items() - spec["template"]["metadata"]["labels"].items():
        errors.append("the selector does not match the pods")
    return errors


def errors_of(manifest, definitions, programs):
    errors = schema_errors(manifest, definitions) + value_errors("$", manifest)
    if not errors and manifest["kind"] == "StatefulSet":
        errors = set_errors(manifest, programs)
    return errors


# Mistakes that the checks must find: path in the workers' StatefulSet, value; None removes the field
POD = ("spec", "template", "spec")
MISTAKES = [
    (("spec", "replicas"), "8"), (("spec", "replica"), 8), (("spec", "selector"), None), (("kinds",), 1),
    (("spec", "podManagementPolicy"), "Paralel"), (("metadata", "name"), "moefarm_worker"),
    (("spec", "volumeClaimTemplates", 0, "spec", "resources", "requests", "storage"), "5Gx"),
    (("spec", "volumeClaimTemplates", 0, "spec", "accessModes", 0), "ReadWriteOne"),
    (POD + ("containers", 0, "resources", "limits", "memory"), "32GiB"),
    (POD + ("containers", 0, "env", 0, "name"), "a b"), (POD + ("hostPID",), True),
    (POD + ("volumes", 1), {"name": "tmp", "hostPath": {"path": "/tmp"}}),
    (POD + ("containers", 0, "securityContext", "capabilities", "drop"), ["CHOWN"]),
    (POD + ("securityContext", "seccompProfile"), None), (POD + ("securityContext", "runAsUser"), 0),
    (POD + ("containers", 0, "args", 0), "--coordinater=tcp://moefarm:7070"),
    (POD + ("containers", 0, "image"), "moefarm-worker-nvdia"),
    (POD + ("containers", 0, "volumeMounts", 0, "name"), "spol"),
    (("spec", "template", "metadata", "labels", "app.kubernetes.io/name"), "other"),
]


def with_mistake(manifest, path, value):
    wrong = copy.deepcopy(manifest)
    at = wrong
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return wrong


def main():
    source, build = pathlib.Path(sys.argv[1]), sys.argv[2]
    definitions = json.loads((source / "tests/data/kubernetes/schema.json").read_text(encoding="utf-8"))
    routes = (source / "server/api/routes.c").read_text(encoding="utf-8")
    worker = help_of(f"{build}/worker/moefarm-worker")
    programs = {"routes": set(re.findall(r'"GET",\s*"([^"]+)"', routes)),
                "images": {"moefarm-server": help_of(f"{build}/server/moefarmd"),
                           "moefarm-worker": worker, "moefarm-worker-nvidia": worker},
                "containerfile": (source / "deploy/container/Containerfile").read_text(encoding="utf-8")}
    errors, checked, workers = [], 0, None
    for path in sorted((source / "deploy/kubernetes").glob("*.yaml")):
        for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            at = f"{path.name}: {manifest['kind']} {manifest['metadata']['name']}"
            errors += [f"{at}: {error}" for error in errors_of(manifest, definitions, programs)]
            checked += 1
            if (path.name, manifest["kind"]) == ("workers.yaml", "StatefulSet"):
                workers = manifest
    errors += [f"not detected: {value!r} in {path}" for path, value in MISTAKES
               if not errors_of(with_mistake(workers, path, value), definitions, programs)]
    print("\n".join(errors) or f"{checked} manifests are valid, {len(MISTAKES)} mistakes are found")
    sys.exit(1 if errors else 0)


main()
