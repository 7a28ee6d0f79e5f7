"""GeoJSON: what is one, and its normal form."""

from __future__ import annotations

from typing import Literal

Frame = Literal["geographic", "planar"]
"""How coordinates are meant: degrees of longitude and latitude on WGS84 (srid 4326), or a plane (srid 0)."""


class NotAGeometryError(ValueError):
    """A value is no geometry of its frame; the text says what is wrong with it, for who wrote the document:
    "ring 2 of polygon 1 is not closed"."""
