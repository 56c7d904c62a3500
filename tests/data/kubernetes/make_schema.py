#!/usr/bin/python3
"""Writes the part of Kubernetes' API schema that deploy/kubernetes uses, without descriptions, to standard
output. The argument is a folder of the strict schemas in PyPI's package kubernetes-validate:

    pip download --no-deps kubernetes-validate==1.37.0 && unzip -q kubernetes_validate-*.whl
    make_schema.py kubernetes_validate/kubernetes-json-schema/v1.37.0-local-strict >schema.json
"""
import json
import sys

ROOTS = ["io.k8s.api.core.v1.Namespace", "io.k8s.api.core.v1.Service", "io.k8s.api.apps.v1.StatefulSet",
         "io.k8s.api.networking.v1.NetworkPolicy"]


def is_documentation(key, value):
    return key.startswith("x-kubernetes-") or (key == "description" and isinstance(value, str))


def stripped(value, used):
    """Returns a schema without documentation, with references inside the file. Adds references to `used`."""
    if isinstance(value, list):
        return [stripped(item, used) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        name = value["$ref"].rsplit("/", 1)[1]
        used.add(name)
        return {"$ref": f"#/$defs/{name}"}
    return {key: stripped(item, used) for key, item in value.items() if not is_documentation(key, item)}


def main():
    with open(f"{sys.argv[1]}/_definitions.json", encoding="utf-8") as file:
        definitions = json.load(file)["$defs"]
    wanted, kept = set(ROOTS), {}
    while wanted - kept.keys():
        for name in sorted(wanted - kept.keys()):
            kept[name] = stripped(definitions[name], wanted)
    lines = [f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept)]
    print('{"$defs": {\n' + ",\n".join(lines) + "\n}}")


main()
