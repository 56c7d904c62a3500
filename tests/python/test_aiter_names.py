"""The kernels that AITER's own tuner enumerates are those of the farm's catalogue (kernels/aiter/).

    AITER_DIR=CHECKOUT MOEFARM_BUILD=build/dev python3 test_aiter_names.py

AITER's real Python sources enumerate the 14 kinds of shapes of tests/unit/kernels/check_aiter.c, one process
per device class (aiter_host.py). Kernels that only the catalogue has must be of a kind that AITER dispatches
and its tuner does not try. Skipped if the interpreter cannot import AITER's sources."""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest
from typing import Dict, List, Set, Tuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import aiter_host  # noqa: E402

BUILD = pathlib.Path(os.environ.get("MOEFARM_BUILD", aiter_host.ROOT / "build/dev"))
MOEFARM = BUILD / "cli/moefarm"
MISSING = aiter_host.missing() or ("" if MOEFARM.exists() else f"{MOEFARM} is not built")
BF16, FN, FNUZ = "torch.bfloat16", "torch.float8_e4m3fn", "torch.float8_e4m3fnuz"
FP4, INT8, INT4 = "torch.float4_e2m1fn_x2", "torch.int8", "torch.int4"

# class, sizes, activation, dtypes of activations and weights, q_type, number of kernels that the tuner tries
KINDS: List[Tuple[str, str, str, str, str, str, int]] = [
    ("gfx942/304", "6144,4096,8,2", "Silu", BF16, BF16, "No", 18),
    ("gfx950/256", "4096,384,128,8", "Silu", BF16, BF16, "No", 15),
    ("gfx942/304", "6144,4096,8,2", "Silu", INT8, INT8, "per_Tensor", 49),
    ("gfx942/304", "7168,256,256,8", "Silu", FNUZ, FNUZ, "per_Token", 57),
    ("gfx942/304", "6144,4096,8,2", "Silu", FNUZ, FNUZ, "per_Token", 59),
    ("gfx950/256", "4096,1536,160,8", "Silu", FN, FN, "per_Token", 46),
    ("gfx942/304", "6144,4096,8,2", "Silu", FNUZ, FNUZ, "per_1x128", 40),
    ("gfx950/256", "7168,256,257,9", "Silu", FN, FN, "per_1x128", 43),
    ("gfx950/256", "7168,512,384,8", "Silu", BF16, INT4, "per_1x32", 84),
    ("gfx950/256", "3584,384,896,16", "Situv2", BF16, FP4, "per_1x32", 432),
    ("gfx950/256", "6144,512,257,9", "Silu", FN, FN, "per_1x32", 714),
    ("gfx950/256", "7168,512,384,8", "Silu", FN, FP4, "per_1x32", 958),
    ("gfx950/256", "7168,512,257,9", "Silu", FP4, FP4, "per_1x32", 1212),
    ("gfx950/256", "3072,1536,128,4", "Swiglu", FP4, FP4, "per_1x32", 1154),
]

# Kernels of the catalogue that the tuner does not try, with the reason: family, pattern of names.
UNTRIED: List[Tuple[str, str]] = [
    ("ck", r"Splitk_v\d.*_sk\d$"),  # tune() computes the factors of split-K and makes no tasks of them
    ("asm", r"_a16_blockscaleFp8_.*16x(128_pf3|256)E$"),  # for bf16 hidden states, tried on gfx950 only
    ("asm", r"_pertokenMXfp4_.*_flat_"),  # no tasks of one stage with per_1x32
    ("flydsl", r"^flydsl_moe[12]_afp8_wfp4_bf16_t16x"),  # no block size 16
    ("flydslv2", r"_sp(801|1601|3201)$"),  # partitions other than the default
    ("mxmoe", "^flydsl_m"),  # only with the tuner's option --mxfp4-flydsl
]

Kernels = Set[Tuple[str, str]]  # family and name
LEGAL = re.compile(r"(\w+):(\S+) covers \S+: legal")


def shape_of(kind: Tuple[str, str, str, str, str, str, int]) -> str:
    _, sizes, act, a, w, q_type, _ = kind
    return f"64,{sizes},ActivationType.{act},{BF16},{a},{w},QuantType.{q_type},1,0"


def enumerated(device_class: str, *options: str) -> Dict[str, Kernels]:
    """What AITER's tuner enumerates for the shapes of a class."""
    shapes = [shape_of(kind) for kind in KINDS if kind[0] == device_class]
    command = [sys.executable, str(pathlib.Path(aiter_host.__file__)), *device_class.split("/"), *options]
    run = subprocess.run(command, input="\n".join(shapes), capture_output=True, text=True, timeout=300)
    if run.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {run.stderr[-2000:]}")
    found = {}
    for line in run.stdout.splitlines():
        listed = json.loads(line)
        assert not listed["unknown"], listed["unknown"]
        kernels = [(generator, name) for generator, _, name in listed["tasks"]]
        assert len(kernels) == len(set(kernels)), f"{listed['shape']}: a kernel occurs twice"
        found[listed["shape"]] = set(kernels)
    return found


def catalogue(device_class: str, shape: str) -> Kernels:
    """The farm's kernels, without the steps that move data around them."""
    command = [str(MOEFARM), "why", "--local", "--device", f"sim:{device_class}:0", "--families", "aiter",
               shape, "*"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    found = {match.groups() for match in map(LEGAL.match, text.splitlines()) if match}
    return {(family, name) for family, name in found if family != "host"}


@unittest.skipIf(MISSING, MISSING)
class Names(unittest.TestCase):
    tried: Dict[str, Dict[str, Kernels]]

    @classmethod
    def setUpClass(cls) -> None:
        cls.tried = {device_class: enumerated(device_class) for device_class in ("gfx942/304", "gfx950/256")}

    def test_every_kernel_is_in_the_catalogue(self) -> None:
        for kind in KINDS:
            with self.subTest(kind):
                tried = self.tried[kind[0]][shape_of(kind)]
                self.assertEqual(len(tried), kind[-1])
                self.assertEqual(tried - catalogue(kind[0], shape_of(kind)), set())

    def test_what_the_tuner_does_not_try_is_explained(self) -> None:
        for kind in KINDS:
            rest = catalogue(kind[0], shape_of(kind)) - self.tried[kind[0]][shape_of(kind)]
            counts: Dict[str, int] = {}
            for family, _ in rest:
                counts[family] = counts.get(family, 0) + 1
            what = f"{kind[0]} {kind[5]} {kind[3]} {kind[4]}"
            print(f"{what}: {kind[6]} kernels are tried, not tried: {counts or 'none'}")
            unexplained = [(family, name) for family, name in sorted(rest)
                           if not any(family == f and re.search(p, name) for f, p in UNTRIED)]
            self.assertEqual(unexplained[:3], [], kind)

    def test_without_the_package_flydsl(self) -> None:
        for shape, kernels in enumerated("gfx950/256", "--without-flydsl").items():
            expected = {(family, name) for family, name in self.tried["gfx950/256"][shape]
                        if not name.startswith("flydsl_")}
            self.assertEqual(kernels, expected, shape)

    def test_without_rocm(self) -> None:
        """In a sandbox AITER cannot start its programs. The message says what to do."""
        text = ("import sys, pathlib; sys.path[:0] = ['python', 'tests/python']; import aiter_host; "
                "host = aiter_host.install('gfx942', 304); "
                "[program.unlink() for program in pathlib.Path(host.name, 'bin').iterdir()]; "
                "from moefarm.families.aiter import source; source.load()")
        command = [sys.executable, "-c", text]
        run = subprocess.run(command, cwd=aiter_host.ROOT, capture_output=True, text=True, timeout=100,
                             check=False)
        self.assertIn("ImportError: AITER cannot be imported: ", run.stderr)
        self.assertIn("start moefarm-worker with --no-sandbox", run.stderr)


if __name__ == "__main__":
    unittest.main()
