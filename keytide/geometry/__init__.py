"""Geometries of documents and of queries: read, cut into cells, compared, measured. Pure.

Read by every package; the cells of documents are on disk, so what `cells_of`, `point_cell` and `point_cells`
give never changes for an index that exists.
"""

from keytide.geometry.covering import CELL_BYTES, LEVEL_MOD, cells_of, point_cell, point_cells
from keytide.geometry.distance import bounds, distance, distances
from keytide.geometry.geojson import Frame, NotAGeometryError, Relation
from keytide.geometry.region import Region
from keytide.geometry.shapes import Geometry, envelope, geometry_of, known_geometry, point

__all__ = [
    "CELL_BYTES",
    "LEVEL_MOD",
    "Frame",
    "Geometry",
    "NotAGeometryError",
    "Region",
    "Relation",
    "bounds",
    "cells_of",
    "distance",
    "distances",
    "envelope",
    "geometry_of",
    "known_geometry",
    "point",
    "point_cell",
    "point_cells",
]
