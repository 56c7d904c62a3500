"""The offers of family `aiter` with a stub of AITER: layers and devices that are refused, tasks that are not
known or not launched, and the sorts. Needs torch."""
import os
import unittest
from typing import Any, Dict, List, Sequence, Tuple
from unittest import mock

try:
    import torch  # noqa: F401
except ImportError as error:
    raise unittest.SkipTest(f"no PyTorch: {error}") from error

from moefarm.families.aiter import adapter, source, tasks
from moefarm.family import Candidate, Device, Rejection, Shape
from test_aiter_tasks import CK1, CK2, KEY, OPUS, TASKS, changed, function

MI300 = Device("hip:amd:0", "gfx942", 304)
ROW = ",".join(str(value) for value in KEY[2:])


class Stub:
    """An AITER whose tuner makes these tasks of every row."""

    def __init__(self, raw: Sequence[Any] = (), flydsl: bool = True) -> None:
        self.raw, self.flydsl = raw, flydsl
        self.rows: List[Dict[str, Any]] = []

    def capture(self, row: Dict[str, Any]) -> Any:
        self.rows.append(row)
        return tasks.decode_all(self.raw, "0.1.99")

    def has_flydsl(self) -> bool:
        return self.flydsl


def offers(stub: Stub, text: str = ROW, device: Device = MI300) -> List[adapter.Offer]:
    with mock.patch.object(source, "load", return_value=stub), mock.patch.dict(os.environ):
        return list(adapter.family.enumerate(Shape.parse(text), device))


def rules(offered: Sequence[adapter.Offer]) -> List[Tuple[str, str]]:
    return [(offer.kernel, offer.rule) for offer in offered if isinstance(offer, Rejection)]


class Offers(unittest.TestCase):
    def test_refused_layers_and_devices(self) -> None:
        cases = [(ROW, Device("hip:nvidia:0", "sm_90", 132), "device"),
                 (ROW, Device("cpu:0", "x86", 8), "device"), (ROW + ",b1", MI300, "form"),
                 (ROW.replace(",1,0", ",0,0"), MI300, "use_g1u1")]
        for text, device, rule in cases:
            with self.subTest(text=text, device=device.name):
                stub = Stub([TASKS[0][0]])
                self.assertEqual(rules(offers(stub, text, device)), [("*", rule)])
                self.assertEqual(stub.rows, [])

    def test_the_row_of_the_tuner(self) -> None:
        stub = Stub()
        self.assertEqual(offers(stub), [])
        self.assertEqual(stub.rows, [dict(zip(tasks.KEY_COLUMNS, KEY))])

    def test_tasks_and_sorts(self) -> None:
        offered = offers(Stub([TASKS[1][0], TASKS[2][0], changed(3, function("run_new"))], flydsl=False))
        steps = [offer for offer in offered if isinstance(offer, Candidate)]
        self.assertEqual([step.name for step in steps], [CK1, CK2, "aiter_moe_sorting_m16"])
        self.assertTrue(all(step.aiter for step in steps))
        self.assertEqual([rule for _, rule in rules(offered)], ["aiter_version", "package"])

    def test_layouts_without_a_name(self) -> None:
        text = ROW.replace("per_1x128", "per_1x32")
        self.assertEqual(rules(offers(Stub([TASKS[5][0]]), text)), [(OPUS, "layout")])


if __name__ == "__main__":
    unittest.main()
