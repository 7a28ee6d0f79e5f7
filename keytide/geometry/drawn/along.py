"""Whether a ring comes back to itself: one of its positions lies on an edge that is not its own, or within
the tolerance of one. GEOS tells that of positions that are exactly there; what was rounded when it was
projected, as everything is that is wide, may be a nanometre beside."""

from __future__ import annotations

import numpy as np
import shapely

from keytide.geometry.drawn.sphere import TOLERANCE, Floats, Numbers


def runs_along_itself(ring: Floats) -> bool:
    """Whether a ring on a chart does, (n, 2), closed."""
    near = (np.abs(ring[1:] - ring[:-1]) < TOLERANCE).all(axis=1)
    at = ring[:-1][~near]  # (what is nearly one place is one)
    pairs, numbers = np.stack((at, np.roll(at, -1, axis=0)), axis=1), np.arange(len(at))
    return meets_others(at, numbers, pairs, numbers, len(at))


def meets_others(at: Floats, corner: Numbers, pairs: Floats, edge: Numbers, count: int) -> bool:
    """Whether corners of a ring, on a chart, lie on other edges than their own.

    Args:
        at, corner: the corners (m, 2), and which each is.
        pairs, edge: ends of edges (k, 2, 2), and which each is: it begins at the corner of its number.
        count: corners of the ring.
    """
    tree = shapely.STRtree(shapely.linestrings(pairs))
    points, lines = tree.query(shapely.points(at), predicate="dwithin", distance=TOLERANCE)
    after = (corner[points] - edge[lines]) % count
    return bool((after > 1).any())
