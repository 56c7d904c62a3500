"""Runs the functions of an installed vLLM or SGLang that find and choose fused-MoE configurations, without
torch, triton or a GPU: the functions are taken from the framework's source files and run with stubs of what
they import.

    VLLM_DIR=… python3 framework_loader.py vllm FOLDER 3.6.0 REQUESTS

VLLM_DIR, SGLANG_DIR: a checkout, or the site-packages that holds the package. FOLDER: value of the
framework's environment variable for its files. 3.6.0: version of Triton. REQUESTS: a file of JSON lines
{"device", "E", "N", "K", "topk", "quant", "block", "per_channel", "tokens"}; N is the last dimension of w2.
Prints for each request one line: the GROUP_SIZE_M of each token count, and in SGLang then that of the second
GEMM; 0 stands for the framework's default."""
import ast
import functools
import inspect
import json
import os
import pathlib
import re
import sys
import types
from typing import Any, Callable, Dict, List, Optional, Tuple

VARIABLES = {"vllm": "VLLM_DIR", "sglang": "SGLANG_DIR"}
FILES = {
    "vllm": ("vllm/model_executor/layers/fused_moe/fused_moe.py",
             "vllm/model_executor/layers/fused_moe/config.py", "vllm/utils/platform_utils.py"),
    "sglang": ("sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py",
               "sglang/srt/layers/moe/fused_moe_triton/fused_moe_triton_config.py"),
}
NAMES = ("get_config_file_name", "get_moe_configs", "try_get_optimal_moe_config", "_get_config_dtype_str",
         "get_config_dtype_str", "get_device_name_as_file_name")
MODULES = {
    "vllm": ("vllm", "vllm.platforms", "vllm.model_executor", "vllm.model_executor.layers",
             "vllm.model_executor.layers.fused_moe"),
    "sglang": ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.layers.moe",
               "sglang.srt.layers.moe.moe_runner", "sglang.srt.layers.moe.moe_runner.triton_utils",
               "sglang.srt.layers.moe.fused_moe_triton"),
}


class Silent:
    """A logger whose methods do nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def find_files(framework: str) -> List[pathlib.Path]:
    root = pathlib.Path(os.environ[VARIABLES[framework]])
    roots = [root, root / "python", root.parent]
    found = [base / name for name in FILES[framework] for base in roots if (base / name).is_file()]
    if not found:
        sys.exit(f"{VARIABLES[framework]} {root} has none of {', '.join(FILES[framework])}")
    return found


def load(path: pathlib.Path, namespace: Dict[str, Any]) -> None:
    """Defines the functions of NAMES that the file has."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    future = ast.ImportFrom(module="__future__", names=[ast.alias(name="annotations")], level=0)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in NAMES]
    module = ast.Module(body=[future, *functions], type_ignores=[])
    namespace["__file__"] = str(path)
    exec(compile(ast.fix_missing_locations(module), str(path), "exec"), namespace)


def stub_modules(framework: str, platform: Any) -> None:
    for name in MODULES[framework]:
        module: Any = types.ModuleType(name)
        module.__path__ = []
        module.get_config = lambda: None
        module.current_platform = platform
        sys.modules[name] = module


def make_namespace(framework: str, folder: str, version: str) -> Dict[str, Any]:
    device = types.SimpleNamespace(name="")
    platform = types.SimpleNamespace(get_device_name=lambda *args: device.name)
    envs = types.SimpleNamespace(VLLM_BATCH_INVARIANT=False, VLLM_TUNED_CONFIG_FOLDER=folder)
    deterministic = types.SimpleNamespace(enable_deterministic_inference=False)
    stub_modules(framework, platform)
    os.environ["SGLANG_MOE_CONFIG_DIR"] = folder
    return {
        "functools": functools, "cache": functools.cache, "json": json, "os": os, "re": re, "envs": envs,
        "logger": Silent(), "current_platform": platform, "device": device,
        "get_device_name": lambda *args: device.name, "triton": types.SimpleNamespace(__version__=version),
        "torch": types.SimpleNamespace(float="float32"), "Any": Any, "Dict": Dict, "List": List,
        "Optional": Optional, "Tuple": Tuple, "get_default_config": lambda *args, **kwargs: {},
        "get_exec": lambda: types.SimpleNamespace(deterministic=deterministic),
        "get_global_server_args": lambda: deterministic,
    }


def dtype_of(namespace: Dict[str, Any], quant: str) -> Optional[str]:
    """The framework's own name of a quantisation, from its flags use_fp8_w8a8 and so on."""
    function = namespace.get("_get_config_dtype_str") or namespace["get_config_dtype_str"]
    flag = "use_" + quant
    flags = {flag: True} if flag in inspect.signature(function).parameters else {}
    result: Optional[str] = function(dtype="bfloat16", **flags)
    return result


def choose(namespace: Dict[str, Any], framework: str, request: Dict[str, Any]) -> List[int]:
    namespace["device"].name = request["device"]
    for name in ("get_moe_configs", "get_device_name_as_file_name"):
        if hasattr(namespace.get(name), "cache_clear"):
            namespace[name].cache_clear()
    experts, inter, hidden = request["E"], request["N"], request["K"]
    more: Dict[str, Any] = {"block_shape": request["block"]}
    if framework == "sglang":
        more.update(per_channel_quant=request["per_channel"], return_down_config=True)
    chosen, chosen_down = [], []
    for tokens in request["tokens"]:
        config = namespace["try_get_optimal_moe_config"](
            (experts, 2 * inter, hidden), (experts, hidden, inter), request["topk"],
            dtype_of(namespace, request["quant"]), tokens, **more)
        down = None
        if framework == "sglang":
            config, (down, _) = config
        chosen.append(config.get("GROUP_SIZE_M", 0))
        chosen_down.append((down or {}).get("GROUP_SIZE_M", 0))
    return chosen + (chosen_down if framework == "sglang" else [])


def main() -> None:
    framework, folder, version, requests = sys.argv[1:]
    namespace = make_namespace(framework, folder, version)
    for path in find_files(framework):
        load(path, namespace)
    for line in pathlib.Path(requests).read_text(encoding="utf-8").splitlines():
        print(*choose(namespace, framework, json.loads(line)))


if __name__ == "__main__":
    main()
