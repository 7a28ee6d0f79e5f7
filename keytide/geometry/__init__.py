"""Geometries of documents and of queries: read, cut into cells, tested, measured. Pure.

Theory of operation
===================
A document's geometry (GeoJSON; `geojson`, `shapes`) is kept under the ids of a few *cells* that cover it
(`cells`), so that an ordered index finds what may be near a query: a point under the leaf it is in (30
levels; a centimetre), anything else under at most eight cells. A query's shape (`QueryShape`) says which
stretches of ids to read, and then tests, exactly, what was found there (`query_shape`,
`distance`).

*Two frames.* Geographic: degrees on WGS84, cells of S2. Planar: any two numbers up to
1e150, cells of a quadtree over all doubles, under ids that are made alike.

*Charts.* GEOS, by shapely, decides in the plane. Edges of geographies are arcs of great circles, and these
are straight on the faces of the cube that S2's cells lie on: so GEOS decides for them as well
(`drawn`). Distances are looked for on the sphere and measured on the spheroid
(`distance`; PROJ).

What is a geometry
==================
* The seven types of GeoJSON (RFC 7946), without anything else that a GeoJSON object may carry: bbox,
  crs, altitude and foreign members are left out of the normal form. No Feature. GeometryCollections in one
  another up to `MOST_NESTED`.
* Numbers that are finite; longitudes -180..180, latitudes -90..90, both ends included. (PostGIS wraps others
  round, with a notice. Here they are refused: latitude first is the usual mistake.) No strings, no booleans.
* Nothing empty. Lines of 2 positions or more, which may all be one place. Rings of 4 or more, closed, of some
  area (on the globe wider than what meets), not crossing or touching themselves; holes within the outline and
  beside one another, touching in single places at most. (PostGIS takes invalid polygons, and answers
  something.) Positions may repeat, and polygons of a MultiPolygon may overlap: it is what they cover
  together.
* Not too much work: `keytide.geometry.drawn.work`.
* Rings go either way: the inside is their smaller side. Edges are the shorter arcs; one between opposite
  places has none, and is refused. Both poles, and the antimeridian, are like any other place, whatever
  longitude is written for a pole, and whether 180 or -180.

How it answers
==============
Geographic as PostGIS' geography does: ST_Intersects, ST_CoveredBy (within), ST_Covers (contains: boundaries
count), ST_DWithin and ST_Distance on the spheroid. What is within ten micrometres meets, and is covered.
Planar as its geometry does: ST_Intersects, ST_Within, ST_Contains (a boundary alone is not within), straight
lines, no tolerance.

On purpose different from PostGIS 3.3's geography, each time to the answer of the definition (held against
brute force by `tests/property/test_geometry.py`, and against PostGIS by
`tests/unit/test_geometry_postgis.py`):

* a polygon covers itself, and one that shares a stretch of its boundary; a point on the rim of a hole is
  covered; what lies around a hole is not covered (PostGIS looks at vertices, and whether edges cross);
* a MultiPolygon covers what its polygons cover together (PostGIS: what one of them covers);
* poles, and 180 and -180, are one place for ST_Covers too;
* what is a few micrometres beside a line meets it (not in PostGIS 3.3);
* polygons wider than some 90 degrees: PostGIS now and then takes the wrong side;
* distances of some metres: PostGIS is wrong by up to a fifth of a millimetre.

Who needs it pays for it: importing this package imports neither numpy nor shapely nor pyproj; coverings,
tests and polygons do, when they are first asked for. Nothing here is changed after it is made, but for what
is kept to be made once, which two threads at worst make twice. `QueryShape` is for one thread at a time.

Imported by `keytide.structure`, `keytide.definition`, `projector.core` and `indexer.scan`; the cells of
documents are on disk, so what `cells_of`, `point_cell` and `point_cells` give never changes for an index that
exists.
"""

from keytide.geometry.cells.covering import (
    CELL_BYTES,
    cells_of,
    point_cell,
    point_cells,
    quick_cells_of_rings,
)
from keytide.geometry.distance import bounds, distance, distances, load_libraries, ring_distances
from keytide.geometry.geojson import (
    MOST_NESTED,
    MOST_WORK,
    Frame,
    NotAGeometryError,
    Relation,
    TooComplexError,
    is_small,
)
from keytide.geometry.nearby import nearest_points, spans_around
from keytide.geometry.query_shape import QueryShape
from keytide.geometry.shapes import (
    Geometry,
    Rings,
    envelope,
    geometry_of,
    indexed_geometry,
    known_geometry,
    point,
    sound_rings,
)

__all__ = [
    "CELL_BYTES",
    "MOST_NESTED",
    "MOST_WORK",
    "Frame",
    "Geometry",
    "NotAGeometryError",
    "QueryShape",
    "Relation",
    "Rings",
    "TooComplexError",
    "bounds",
    "cells_of",
    "distance",
    "distances",
    "envelope",
    "geometry_of",
    "indexed_geometry",
    "is_small",
    "known_geometry",
    "load_libraries",
    "nearest_points",
    "point",
    "point_cell",
    "point_cells",
    "quick_cells_of_rings",
    "ring_distances",
    "sound_rings",
    "spans_around",
]
