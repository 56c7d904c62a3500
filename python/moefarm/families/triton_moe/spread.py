"""Picks configurations that lie far from each other, so that few measurements see most of a search space."""
from __future__ import annotations

import math
from typing import Dict, List, Sequence, Tuple

from moefarm.families.triton_moe.config import Config

_Point = Tuple[float, ...]
_FAR_MAX = 256  # larger choices are taken at equal steps, because the time for distances grows with n


def _points(configs: Sequence[Config]) -> List[_Point]:
    """Logarithms of the values, each field scaled to 0..1 over `configs`."""
    fields = sorted({field for config in configs for field in config})
    logs = [[math.log2(1 + config.get(field, 0)) for field in fields] for config in configs]
    low = [min(column) for column in zip(*logs)]
    width = [max(column) - least or 1.0 for column, least in zip(zip(*logs), low)]
    return [tuple((value - least) / range_ for value, least, range_ in zip(point, low, width))
            for point in logs]


def _distance(a: _Point, b: _Point) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b))


def spread(configs: Sequence[Config], n: int, taken: Sequence[Config] = ()) -> List[Config]:
    """Returns n of `configs`, each as far as possible from those before it and from `taken`. The first one,
    if nothing is taken, is the one nearest to the centre. The order of `configs` breaks ties."""
    if n >= len(configs):
        return list(configs)
    if n > _FAR_MAX:
        return [configs[i * len(configs) // n] for i in range(n)]
    points = _points([*configs, *taken])
    own, others = points[:len(configs)], points[len(configs):]
    centre: _Point = tuple(sum(column) / len(own) for column in zip(*own)) if own else ()
    nearest: Dict[int, float] = {
        i: min((_distance(point, other) for other in others), default=-_distance(point, centre))
        for i, point in enumerate(own)}
    started = bool(others)
    picked: List[Config] = []
    while len(picked) < n:
        best = max(nearest, key=lambda i: (nearest[i], -i))
        del nearest[best]
        picked.append(configs[best])
        for i in nearest:
            distance = _distance(own[i], own[best])
            nearest[i] = min(nearest[i], distance) if started else distance
        started = True
    return picked
