"""Runs a worker's runner inside a Python interpreter, so that kernel families may be Python modules.

    python -I -S boot.py LIBRARY OPTIONS…         the runner (worker/runner/library.h)
    python -I -S boot.py --cli LIBRARY DEVICE MODULE… -- ARGUMENTS…
                                                  a command of moefarm (cli/python/library.h)
    python -I -S boot.py --enumerate MODULE NAME  lists the candidates of one family (worker/runner/
                                                  python_enumerator.h)

The worker and moefarm start this file; it is not for users. Order matters: the runner enters its sandbox
before the first module outside the standard library is imported, because a sandbox binds only the calling
thread and threads that it starts later, and imports may start threads."""
from __future__ import annotations

import contextlib
import ctypes
import glob
import hashlib
import importlib
import importlib.util
import json
import os
import re
import signal
import site
import socket
import sys
import types
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

if TYPE_CHECKING:
    from moefarm.family import Candidate, Family, Kernel, Shape
    from moefarm.tensor import Tensor

API = 2  # MOEFARM_RUNNER_API
CLI_API = 1  # MOEFARM_CLI_API
SUPERVISED_FD = 3  # MF_SUPERVISED_FD
ENOMEM, ENOTSUP = 12, 95
IMPORT_S, SILENCE_S = 120, 30  # limits of a family in the enumerating process
# Compilers and libraries keep caches in these folders; a runner may write only to its scratch folder.
CACHES = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR",
          "CUDA_CACHE_PATH", "AMD_COMGR_CACHE_DIR")


def reason_of(error: BaseException) -> str:
    """The exception as one line, with the place that raised it."""
    frame, place = error.__traceback__, ""
    while frame:
        file = frame.tb_frame.f_code.co_filename
        if not file.startswith("<"):  # the import system
            place = f" ({os.path.basename(file)}:{frame.tb_lineno})"
        frame = frame.tb_next
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' + text if text else ''}{place}"


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


# ---- modules ----


def is_file(module: str) -> bool:
    return "/" in module or module.endswith(".py")


def folder_of(module: str) -> str:
    """The folder of a package, or the folder that a module's file may import from."""
    path = os.path.abspath(module)
    return path if os.path.isdir(path) else os.path.dirname(path)


def name_of(module: str) -> str:
    """The name under which a module is reported until its families are known."""
    if is_file(module):
        return os.path.splitext(os.path.basename(os.path.abspath(module)))[0]
    return module.rsplit(".", 1)[-1]


def load_module(module: str) -> types.ModuleType:
    """Imports a module by its name, or from a file or a package's folder."""
    if not is_file(module):
        return importlib.import_module(module)
    package = os.path.isdir(module)
    if not package and folder_of(module) not in sys.path:
        sys.path.insert(1, folder_of(module))
    name = re.sub(r"\W", "_", name_of(module))
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(module, "__init__.py") if package else module,
        submodule_search_locations=[module] if package else None)
    if not spec or not spec.loader:
        raise ImportError(f"{module}: not a Python file")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def families_of(module: types.ModuleType) -> List[Family]:
    from moefarm.family import Family
    found = getattr(module, "families", None)
    if found is None:
        found = [module.family] if hasattr(module, "family") else []
    families = [f for f in found if isinstance(f, Family)]
    if not families or len(families) != len(found):
        raise TypeError("the module has neither a variable `family` of class moefarm.family.Family nor a "
                        "list `families` of such objects")
    return families


def opens_rows(family: Family) -> bool:
    """True if the family can run rows of its framework's table."""
    from moefarm.family import Family as Base
    return type(family).open_row is not Base.open_row


def hash_of(module: types.ModuleType) -> str:
    """Hashes the module's file, or all sources of the package that the module is in."""
    file = module.__file__ or ""
    files = [file]
    if module.__package__ or os.path.basename(file) == "__init__.py":
        files = sorted(glob.glob(os.path.join(glob.escape(os.path.dirname(file)), "**", "*.py"),
                                 recursive=True))
    digest = hashlib.sha256()
    for path in files:
        with open(path, "rb") as source:
            digest.update(hashlib.sha256(source.read()).digest())
    return digest.hexdigest()[:16]


def find_prefixes() -> List[str]:
    """The folders of the interpreter. With -S, sys.prefix is not yet that of a virtual environment."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(sys.executable)))
    prefixes = [sys.base_prefix, sys.base_exec_prefix, sys.prefix]
    if os.path.exists(os.path.join(own, "pyvenv.cfg")):
        prefixes.append(own)
    return list(dict.fromkeys(prefixes))


def extend_path() -> None:
    """Adds the interpreter's site packages and moefarm's own package."""
    sys.dont_write_bytecode = True
    site.main()
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def import_in_child(module: str) -> str:
    """Imports a module in a child process. Returns how the import ended the process, or "" if it did not."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(IMPORT_S)
        try:
            load_module(module)
        except BaseException:  # the runner gets and reports the same exception
            pass
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == -signal.SIGALRM:
        return f"the import took longer than {IMPORT_S} s"
    if code < 0:
        return f"the import crashed with signal {-code} ({signal.strsignal(-code)})"
    return f"the import ended the process with exit code {code}" if code else ""


def why_not_importable(module: str, scratch: str) -> str:
    """Like import_in_child, but only for the first runner of a worker: it leaves the result in the scratch
    folder, if there is one."""
    if not scratch:
        return import_in_child(module)
    content = module.encode()
    if is_file(module) and os.path.isfile(module):
        with open(module, "rb") as source:
            content += source.read()
    result = os.path.join(scratch, f"import-{hashlib.sha256(content).hexdigest()[:16]}")
    try:
        with open(result, encoding="utf-8") as known:
            return known.read()
    except OSError:
        pass
    why = import_in_child(module)
    with open(result, "w", encoding="utf-8") as known:
        known.write(why)
    return why


# ---- the enumerating process ----


class Peer:
    """The socket to the runner: one JSON object per line. A family that is silent for too long is ended by
    SIGALRM, which the runner reports as a hang."""

    def __init__(self) -> None:
        self.socket = socket.socket(fileno=int(os.environ["MOEFARM_RUNNER_FD"]))
        self.lines = self.socket.makefile("r", encoding="utf-8")

    def send(self, **message: object) -> None:
        self.socket.sendall((json.dumps(message) + "\n").encode())
        signal.alarm(SILENCE_S)

    def messages(self) -> Iterator[Dict[str, Any]]:
        while True:
            signal.alarm(0)
            line = self.lines.readline()
            if not line:
                return
            signal.alarm(SILENCE_S)
            yield json.loads(line)


def enumerate_once(family: Family, message: Dict[str, Any], peer: Peer) -> None:
    from moefarm.family import Candidate, Device, Rejection, Shape
    known = message["device"]
    gfx, _, cu_num = known["class"].partition("/")
    device = Device(message["name"], gfx, int(cu_num), known)
    for offer in family.enumerate(Shape.parse(message["shape"], message["layer"]), device):
        if isinstance(offer, Candidate):
            peer.send(op="step", step=offer.to_json(family.name))
        elif isinstance(offer, Rejection):
            peer.send(op="reject", kernel=offer.kernel, rule=offer.rule, reason=offer.reason)
        else:
            raise TypeError(f"enumerate yielded {type(offer).__name__}, not a Candidate or Rejection")


def enumerate_main(module: str, name: str) -> int:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(IMPORT_S)
    peer = Peer()
    extend_path()
    family = next(f for f in families_of(load_module(module)) if f.name == name)
    for message in peer.messages():
        try:
            enumerate_once(family, message, peer)
        except Exception as error:  # an exception is a rejection; SystemExit is not caught
            peer.send(op="reject", kernel=name, rule="exception", reason=f"enumerate: {reason_of(error)}")
        peer.send(op="enumerated")
    return 0


# ---- the runner ----


class Conversions:
    """Converted weights, shared by the open kernels of one layout."""

    def __init__(self) -> None:
        self.shared: Dict[Tuple[object, ...], List[Any]] = {}  # [converted, number of kernels]

    def acquire(self, key: Tuple[object, ...], convert: Callable[[], Any]) -> Any:
        if key not in self.shared:
            self.shared[key] = [convert(), 0]
        self.shared[key][1] += 1
        return self.shared[key][0]

    def release(self, key: Tuple[object, ...]) -> None:
        self.shared[key][1] -= 1
        if self.shared[key][1] == 0:
            del self.shared[key]


class Opened:
    """An open kernel and the arguments that it is prepared for."""

    def __init__(self, family: Family, candidate: Candidate, shape: Shape, conversions: Conversions,
                 row: Optional[Dict[str, Any]] = None) -> None:
        self.family, self.candidate, self.shape, self.conversions = family, candidate, shape, conversions
        self.kernel: Kernel = family.open(candidate, shape) if row is None else family.open_row(row, shape)
        self.arguments: Dict[int, Dict[str, Tensor]] = {}
        self.weights: Optional[Tuple[object, ...]] = None  # key of the converted weights in use

    def prepare(self, arguments: int, tensors: Dict[str, Tensor], stream: int) -> int:
        self.convert({name: t for name, t in tensors.items() if name.split("_")[0] in ("w1", "w2")})
        graph = self.kernel.prepare(tensors, stream)
        self.arguments[arguments] = tensors
        return graph or 0

    def convert(self, weights: Dict[str, Tensor]) -> None:
        layout = self.family.weight_layout(self.candidate)
        key = (self.family.name, layout, str(self.shape), tuple((n, t.pointer) for n, t in weights.items()))
        if not weights or key == self.weights:
            return
        self.release()
        self.kernel.weights = self.conversions.acquire(
            key, lambda: self.family.convert_weights(self.candidate, self.shape, weights))
        self.weights = key

    def release(self) -> None:
        if self.weights:
            self.kernel.weights = None
            self.conversions.release(self.weights)
            self.weights = None

    def close(self) -> None:
        self.arguments.clear()
        try:
            self.kernel.close()
        finally:
            self.release()


_TEXT = [ctypes.c_void_p, ctypes.c_size_t]  # where a callback writes its reason
OPEN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p,
                        ctypes.POINTER(ctypes.c_int64), *_TEXT)
PREPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p, ctypes.c_size_t,
                           ctypes.POINTER(ctypes.c_size_t), *_TEXT)
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_size_t, *_TEXT)
RELEASE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64, *_TEXT)
FINISH = LAUNCH
CLOSE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, *_TEXT)
PRECOMPILE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p, *_TEXT)


CALLBACKS = [("open", OPEN), ("prepare", PREPARE), ("launch", LAUNCH), ("finish", FINISH),
             ("release", RELEASE), ("close", CLOSE), ("precompile", PRECOMPILE)]


class Callbacks(ctypes.Structure):
    """struct moefarm_runner_callbacks"""

    _fields_ = list(CALLBACKS)


def write_text(text: str, to: int, capacity: int) -> None:
    data = text.encode(errors="replace")[:capacity - 1]
    ctypes.memmove(to, data + b"\0", len(data) + 1)


def guarded(function: Callable[..., Optional[str]]) -> Callable[..., int]:
    """Makes a callback of C: an exception becomes a negative errno and a reason. `function` returns a text
    for the caller, or None."""

    def call(*arguments: Any) -> int:
        *values, why, capacity = arguments
        try:
            write_text(function(*values) or "", why, capacity)
            return 0
        except SystemExit as error:
            print(f"{function.__name__}: sys.exit({error.code!r})", file=sys.stderr, flush=True)
            os._exit(error.code if isinstance(error.code, int) else 1)
        except BaseException as error:
            write_text(reason_of(error), why, capacity)
            return -ENOMEM if is_out_of_memory(error) else -ENOTSUP

    return call


def argv_of(words: Sequence[str]) -> Any:
    """The words as a C array that ends with NULL."""
    return (ctypes.c_char_p * (len(words) + 1))(*(os.fsencode(word) for word in words), None)


class Host:
    """A C library and the families and kernels that it knows by number."""

    def __init__(self, library: str, device: str) -> None:
        self.library, self.device, self.conversions = ctypes.CDLL(library), device, Conversions()
        self.families: List[Family] = []
        self.kernels: Dict[int, Opened] = {}
        self.last_kernel = 0
        self.scratch = ""  # folder for files that runners leave for each other; "": none
        self.callbacks = Callbacks(*(kind(guarded(getattr(self, name))) for name, kind in CALLBACKS))

    # ---- callbacks: the parameters are those of struct moefarm_runner_callbacks, without the reason ----

    def open(self, family: int, shape: bytes, step: bytes, ret: Any) -> None:
        from moefarm.family import Candidate, Shape
        described, described_step = json.loads(shape), json.loads(step)
        opened = Opened(self.families[family], Candidate.from_json(described_step),
                        Shape.parse(described["shape"], described["layer"]), self.conversions,
                        described_step.get("row"))
        self.last_kernel += 1
        self.kernels[self.last_kernel] = opened
        ret[0] = self.last_kernel

    def prepare(self, kernel: int, arguments: int, tensors: bytes, stream: int, ret_graph: Any) -> str:
        from moefarm.family import tensor_device
        from moefarm.tensor import Tensor
        device = tensor_device(self.device)
        named = {t["name"]: Tensor(t["name"], t["shape"], t["dtype"], t["pointer"], device, t["writable"])
                 for t in json.loads(tensors)}
        ret_graph[0] = self.kernels[kernel].prepare(arguments, named, stream)
        return self.kernels[kernel].kernel.not_captured

    def launch(self, kernel: int, arguments: int, stream: int) -> None:
        opened = self.kernels[kernel]
        opened.kernel.launch(opened.arguments[arguments], stream)

    def finish(self, kernel: int, arguments: int, stream: int) -> None:
        opened = self.kernels[kernel]
        opened.kernel.finish(opened.arguments[arguments], stream)

    def release(self, kernel: int, arguments: int) -> None:
        self.kernels[kernel].arguments.pop(arguments, None)

    def close(self, kernel: int) -> None:
        self.kernels.pop(kernel).close()

    def precompile(self, family: int, shape: bytes, steps: bytes) -> None:
        from moefarm.family import Candidate, Shape
        described = json.loads(shape)
        candidates = [Candidate.from_json(step) for step in json.loads(steps)]
        name = f"{self.families[family].name} {described['shape']}"
        begun = os.path.join(self.scratch, f"precompile-{hashlib.sha256(name.encode()).hexdigest()[:16]}")
        if os.path.exists(begun):  # an earlier runner died here, so `open` compiles within its time limit
            return
        with self.marked(begun):
            for _ in self.families[family].precompile(candidates,
                                                      Shape.parse(described["shape"], described["layer"])):
                self.library.moefarm_runner_progress()

    @contextlib.contextmanager
    def marked(self, file: str) -> Iterator[None]:
        """Keeps a file in the scratch folder while the context is open. It stays if the process dies."""
        if self.scratch:
            open(file, "w", encoding="utf-8").close()
        try:
            yield
        finally:
            if self.scratch:
                os.unlink(file)

    # ---- start ----

    def enumerate_command(self, module: str, family: Family) -> Any:
        """The command of the process that lists the candidates of a family, for C."""
        command = [sys.executable, "-I", "-S", os.path.abspath(__file__), "--enumerate", module, family.name]
        return argv_of(command)


class Runner(Host):
    """The C runner (worker/runner/library.h)."""

    def __init__(self, library: str, options: Sequence[str]) -> None:
        self.options = list(options)
        super().__init__(library, self.option("--device"))
        self.scratch = self.option("--scratch")
        self.kept: List[Any] = []  # arrays that the library keeps pointers to

    def option(self, name: str) -> str:
        return self.options[self.options.index(name) + 1] if name in self.options else ""

    def modules(self) -> List[str]:
        return [self.options[i + 1] for i, word in enumerate(self.options) if word == "--family-py"]

    def enter(self) -> bool:
        def texts(values: Sequence[str]) -> Any:
            array = (ctypes.c_char_p * len(values))(*(os.fsencode(v) for v in values))
            self.kept.append(array)
            return array
        own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        readable = [own] + [folder_of(m) for m in self.modules() if is_file(m)]
        prefixes = find_prefixes()
        if self.library.moefarm_runner_api() != API:
            print("libmoefarm-runner.so and boot.py have different versions; install matching moefarm "
                  "packages", file=sys.stderr)
            return False
        return bool(self.library.moefarm_runner_enter(
            len(self.options) + 1, texts(["runner", *self.options]), len(prefixes), texts(prefixes),
            len(readable), texts(readable), ctypes.byref(self.callbacks)) == 0)

    def keep_caches_in_scratch(self) -> None:
        for variable in CACHES:
            if self.scratch and "--no-sandbox" not in self.options:
                os.environ[variable] = self.scratch

    def add_families(self) -> None:
        for module in self.modules():
            try:
                why = why_not_importable(module, self.scratch)
                if why:
                    self.refuse(name_of(module), why)
                    continue
                loaded = load_module(module)
                for family in families_of(loaded):
                    self.add_family(module, family, hash_of(loaded))
            except (Exception, SystemExit) as error:
                self.refuse(name_of(module), reason_of(error))

    def add_family(self, module: str, family: Family, source: str) -> None:
        why = ctypes.create_string_buffer(320)
        revision = f"{source} {family.revision()}"
        if self.library.moefarm_runner_add_family(
                family.name.encode(), revision.encode(), int(family.supports_ep), int(opens_rows(family)),
                self.enumerate_command(module, family), why, len(why)) < 0:
            self.refuse(family.name, why.value.decode(errors="replace"))
        else:
            self.families.append(family)

    def refuse(self, name: str, why: str) -> None:
        print(f"family {name}: {why}", file=sys.stderr, flush=True)
        self.library.moefarm_runner_refuse_family(name.encode(), why.encode(errors="replace"))


def run_main(library: str, options: Sequence[str]) -> int:
    runner = Runner(library, options)
    if not runner.enter():
        return 1
    runner.keep_caches_in_scratch()
    extend_path()
    runner.add_families()
    return int(runner.library.moefarm_runner_run())


class Cli(Host):
    """The commands run-config and compare of moefarm (cli/python/library.h)."""

    def add_families(self, module: str) -> None:
        for family in families_of(load_module(module)):
            why = ctypes.create_string_buffer(320)
            if self.library.moefarm_cli_add_family(
                    family.name.encode(), self.device.encode(), int(family.supports_ep),
                    self.enumerate_command(module, family), ctypes.byref(self.callbacks), why, len(why)) < 0:
                raise ValueError(why.value.decode(errors="replace"))
            self.families.append(family)

    def run(self, arguments: Sequence[str]) -> int:
        return int(self.library.moefarm_cli_run(len(arguments), argv_of(arguments)))


def cli_main(library: str, device: str, modules: Sequence[str], arguments: Sequence[str]) -> int:
    sys.stdout = sys.stderr  # frameworks print there, and the command's output may be JSON
    cli = Cli(library, device)
    if cli.library.moefarm_cli_api() != CLI_API:
        print("moefarm: libmoefarm-cli.so and boot.py have different versions; install matching moefarm "
              "packages", file=sys.stderr)
        return 1
    os.environ["MOEFARM_RUNNER_FD"] = str(SUPERVISED_FD)
    extend_path()
    for module in modules:
        try:
            cli.add_families(module)
        except (Exception, SystemExit) as error:
            print(f"moefarm: --family-py {module}: {sys.executable} cannot load it: {reason_of(error)}",
                  file=sys.stderr)
            return 2
    return cli.run(arguments)


def main(argv: Sequence[str]) -> int:
    if argv[1] == "--enumerate":
        return enumerate_main(argv[2], argv[3])
    if argv[1] == "--cli":
        end = argv.index("--")
        return cli_main(argv[2], argv[3], argv[4:end], argv[end + 1:])
    return run_main(argv[1], argv[2:])


if __name__ == "__main__":
    status = main(sys.argv)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # without a teardown, which could crash in libraries that own a device
