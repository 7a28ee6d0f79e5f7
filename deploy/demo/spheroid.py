"""How far apart two points are on the WGS84 spheroid, for the demo's check: T. Vincenty's inverse formula
(Survey Review 23/176, 1975), to a millimetre; not for points that face each other across the globe."""

from __future__ import annotations

import math
from typing import Final

_EQUATOR_M: Final = 6_378_137.0
_FLATTENING: Final = 1 / 298.257223563
_POLE_M: Final = _EQUATOR_M * (1 - _FLATTENING)


def metres_between(lon: float, lat: float, other_lon: float, other_lat: float) -> float:
    """Of points in degrees.

    Raises:
        ValueError: they face each other across the globe.
    """
    if (lon, lat) == (other_lon, other_lat):
        return 0.0
    turn = math.radians(other_lon - lon)
    reduced = [math.atan((1 - _FLATTENING) * math.tan(math.radians(one))) for one in (lat, other_lat)]
    (sin_u, sin_v), (cos_u, cos_v) = map(math.sin, reduced), map(math.cos, reduced)
    auxiliary = turn
    for _ in range(100):
        sin_l, cos_l = math.sin(auxiliary), math.cos(auxiliary)
        sin_arc = math.hypot(cos_v * sin_l, cos_u * sin_v - sin_u * cos_v * cos_l)
        cos_arc = sin_u * sin_v + cos_u * cos_v * cos_l
        arc = math.atan2(sin_arc, cos_arc)
        sin_azimuth = cos_u * cos_v * sin_l / sin_arc
        squared = 1 - sin_azimuth**2
        middle = cos_arc - 2 * sin_u * sin_v / squared if squared else 0.0
        c = _FLATTENING / 16 * squared * (4 + _FLATTENING * (4 - 3 * squared))
        inner = middle + c * cos_arc * (2 * middle**2 - 1)
        before, auxiliary = (
            auxiliary,
            turn + (1 - c) * _FLATTENING * sin_azimuth * (arc + c * sin_arc * inner),
        )
        if abs(auxiliary - before) < 1e-12:
            return _length(squared, arc, sin_arc, cos_arc, middle)
    raise ValueError("the points face each other across the globe")


def _length(squared: float, arc: float, sin_arc: float, cos_arc: float, middle: float) -> float:
    u = squared * (_EQUATOR_M**2 - _POLE_M**2) / _POLE_M**2
    a = 1 + u / 16384 * (4096 + u * (u * (320 - 175 * u) - 768))
    b = u / 1024 * (256 + u * (u * (74 - 47 * u) - 128))
    inner = cos_arc * (2 * middle**2 - 1) - b / 6 * middle * (4 * sin_arc**2 - 3) * (4 * middle**2 - 3)
    return _POLE_M * a * (arc - b * sin_arc * (middle + b / 4 * inner))
