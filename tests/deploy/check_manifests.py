#!/usr/bin/python3
"""Checks the Kubernetes manifests against the API schema of Debian's python3-kubernetes: known fields of the
right type, and no required field missing. Also checks that probes use routes of moefarmd, that options exist
in the programs, that named ports and volumes exist, and that the Containerfile builds the images.

    check_manifests.py SOURCE BUILD
"""
import pathlib
import re
import subprocess
import sys

try:
    import yaml
    from kubernetes.client import models
except ImportError as missing:
    print(f"skipped: {missing} (package python3-kubernetes)")
    sys.exit(77)

KINDS = {("v1", "Namespace"): "V1Namespace", ("v1", "Service"): "V1Service",
         ("apps/v1", "StatefulSet"): "V1StatefulSet",
         ("networking.k8s.io/v1", "NetworkPolicy"): "V1NetworkPolicy"}
SCALARS = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object, "datetime": str}
errors = []


def wrong(at, text):
    errors.append(f"{at}: {text}")


def check(at, value, kind):
    """Checks that a value has the schema type `kind`. Returns the Kubernetes client's object for the value.

    The constructor of that object checks required fields.
    """
    listed, mapped = re.fullmatch(r"list\[(.*)\]", kind), re.fullmatch(r"dict\((\w+), (.*)\)", kind)
    if listed:
        if not isinstance(value, list):
            return wrong(at, f"expected a list of {listed[1]}")
        return [check(f"{at}[{i}]", item, listed[1]) for i, item in enumerate(value)]
    if mapped:
        if not isinstance(value, dict):
            return wrong(at, "expected a map")
        return {key: check(f"{at}.{key}", item, mapped[2]) for key, item in value.items()}
    if kind in SCALARS:
        bool_allowed = kind in ("bool", "object")
        good = isinstance(value, SCALARS[kind]) and (bool_allowed or not isinstance(value, bool))
        return value if good else wrong(at, f"{value!r}: expected {kind}")
    model = getattr(models, kind)
    if not isinstance(value, dict):
        return wrong(at, f"expected {kind}")
    names = {json_name: name for name, json_name in model.attribute_map.items()}
    made = {}
    for key, item in value.items():
        if key in names:
            made[names[key]] = check(f"{at}.{key}", item, model.openapi_types[names[key]])
        else:
            wrong(at, f"{kind} has no field {key}")
    try:
        return model(**made)
    except ValueError as refusal:
        return wrong(at, str(refusal))


def help_of(program):
    """Returns the options of a program, from its --help."""
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--([a-z-]+)", text))


def check_pod(at, manifest, routes, options):
    pod = manifest["spec"]["template"]["spec"]
    claims = [claim["metadata"]["name"] for claim in manifest["spec"].get("volumeClaimTemplates", [])]
    volumes = [volume["name"] for volume in pod["volumes"]] + claims
    for container in pod["containers"]:
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe not in container:
                continue
            get = container[probe]["httpGet"]
            if ("GET", get["path"]) not in routes:
                wrong(at, f"{probe}: moefarmd has no route {get['path']}")
            if get["port"] not in ports:
                wrong(at, f"{probe}: no port {get['port']}")
        for mount in container["volumeMounts"]:
            if mount["name"] not in volumes:
                wrong(at, f"no volume {mount['name']}")
        for word in container["args"]:
            if word.split("=")[0].removeprefix("--") not in options[container["image"]]:
                wrong(at, f"{container['image']} has no option {word}")
        containerfile = open(sys.argv[1] + "/deploy/container/Containerfile", encoding="utf-8").read()
        if container["image"] not in containerfile:
            wrong(at, f"the Containerfile does not build the image {container['image']}")
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    if manifest["spec"]["selector"]["matchLabels"].items() - labels.items():
        wrong(at, "the selector does not match the pods")


def main():
    source, build = sys.argv[1:]
    text = pathlib.Path(f"{source}/server/api/routes.c").read_text(encoding="utf-8")
    routes = set(re.findall(r'"(GET|POST)",\s*"([^"]+)"', text))
    options = {"moefarm-server": help_of(f"{build}/server/moefarmd"),
               "moefarm-worker": help_of(f"{build}/worker/moefarm-worker")}
    checked = 0
    for path in sorted(pathlib.Path(f"{source}/deploy/kubernetes").glob("*.yaml")):
        for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            at = f"{path.name}: {manifest['kind']} {manifest['metadata']['name']}"
            check(at, manifest, KINDS[manifest["apiVersion"], manifest["kind"]])
            if manifest["kind"] == "StatefulSet":
                check_pod(at, manifest, routes, options)
            checked += 1
    # check() must detect a mistake of each kind
    before = len(errors)
    mistakes = {"spec": {"replicas": "1"}}, {"spec": {"replica": 1}}, {"spec": {"template": {}}}, {"kinds": 1}
    for mistake in mistakes:
        check("mistake", mistake, "V1StatefulSet")
        if len(errors) == before:
            errors.append(f"{mistake} was not detected")
            break
        del errors[before:]
    print("\n".join(errors) or f"{checked} manifests match the schema")
    sys.exit(1 if errors else 0)


main()
