"""Which ids lie around a place on the globe: the spans of a disc, by a grid of cells of one size.

Theory of operation
===================
On the chart of a face (`keytide.geometry.drawn.charts`) what is within an angle of a place is an ellipse.
With m = (mu, mv, mw) the place, of length 1, as the face's axes see it, and (x, y) how far a spot of the
chart is from the place's own, (mu, mv) / mw, the spot's vector is p = m / mw + (x, y, 0). So the squared
length of p x m, which is that of p times the squared sine of the angle between them, is

    A x^2 - 2 B x y + C y^2,    A = mw^2 + mv^2, B = mu mv, C = mw^2 + mu^2,    A C - B^2 = mw^2,

and at most T^2 within the angle, T being its tangent times the greatest p . m of the disc. Nothing here is
the difference of two numbers that are nearly the same: a disc of a millimetre is as true as one of a hundred
kilometres.

The cells are those of the finest level of which few stand side by side. Of each row of them those are taken
that the ellipse reaches there: an equation of second degree each, no test per cell. It takes a fifth of what
the covering of a circle takes as that of any shape (`keytide.geometry.cells.quick`).
"""

from __future__ import annotations

import math
from typing import Final

from keytide.geometry.cells.curve import LEAF, SIDE, least_of
from keytide.geometry.cells.geographic import face_coordinate, face_place
from keytide.geometry.cells.quick import MARGIN, Vector

WIDEST: Final = math.radians(5)
"""Of a disc: wider ones are rare."""
_EDGE: Final = 1 + MARGIN
_INSIDE: Final = 1 - MARGIN
"""What is nearer to the middle of a face is no edge of it."""
_FACE: Final = 1 << 2 * LEAF
"""The lowest one of the id of a whole face."""
_IN_FRONT: Final = 0.45
"""The cosine of the angle between a face's axis and the middle of a disc that may reach its square, and less:
all of the square is within 54.8 degrees of the axis."""


def disc_spans(middle: Vector, angle: float, across: int) -> list[tuple[int, int]] | None:
    """Inclusive ranges of cell ids, disjoint and ascending: whatever has a place within an angle of another
    one has one of its `cells_of` in one of them. None of a wide disc.

    Args:
        middle: the place, of length 1.
        angle: radians.
        across: how many cells stand side by side at most on a face, at least 2: more are a closer covering,
            and more ranges.
    """
    if not 0 <= angle <= WIDEST:
        return None
    x, y, z = middle
    spans: list[tuple[int, int]] = []
    # (u, v, w) of the faces, as S2 has them.
    for face, along in enumerate(((y, z, x), (-x, z, y), (-x, -y, z), (-z, -y, -x), (-z, x, -y), (y, x, -z))):
        if along[2] > _IN_FRONT:
            spans += _spans_on(face, along, math.tan(angle), across)
    spans.sort()
    found: list[tuple[int, int]] = []
    end = -2
    for low, high in spans:
        if low <= end + 2:  # (between two leaves there is an even number, which is no leaf's id)
            low, _ = found.pop()
        end = high
        found.append((low, high))
    return found


def _spans_on(face: int, middle: Vector, tangent: float, across: int) -> list[tuple[int, int]]:
    """The ranges of the cells of one face, disjoint, and the ids of the cells around them.

    Args:
        middle: as the face sees it, in front of it.
        tangent: of the angle.
    """
    mu, mv, mw = middle
    a, b, c = mw * mw + mv * mv, mu * mv, mw * mw + mu * mu
    root_a, root_c = math.sqrt(a), math.sqrt(c)
    size = tangent / (mw - tangent * (root_c * abs(mu) + root_a * abs(mv)))  # T
    width, height = size * root_c / mw, size * root_a / mw
    u, v = mu / mw, mv / mw
    left, right, below, above = (
        u - width - MARGIN,
        u + width + MARGIN,
        v - height - MARGIN,
        v + height + MARGIN,
    )
    if left > _EDGE or right < -_EDGE or below > _EDGE or above < -_EDGE:
        return []
    inside = min(left, below) > -_INSIDE and max(right, above) < _INSIDE
    place = face_place if inside else _place
    i, last_i, j, last_j = _place(left), _place(right), _place(below), _place(above)
    shift = max(0, (max(last_i - i, last_j - j) // across).bit_length() - 1)
    while (last_i >> shift) - (i >> shift) >= across or (last_j >> shift) - (j >> shift) >= across:
        shift += 1
    spans: list[tuple[int, int]] = []
    ancestors: set[int] = set()
    whole, lean, square, flat = 2 << 2 * shift, b * width / c, a * size * size, mw * mw
    start = face_coordinate(j >> shift << shift) - v - MARGIN
    for row in range(j >> shift, (last_j >> shift) + 1):
        line = face_coordinate(row + 1 << shift) - v
        y0, y1 = max(start, -height), min(line + MARGIN, height)
        start = line - MARGIN
        if y0 > y1:
            continue
        # How far the ellipse reaches within the row: as far as it does at all if it does so here, else as far
        # as at the end of the row that is nearer to there.
        y = min(max(lean, y0), y1)
        farthest = (b * y + math.sqrt(max(0.0, square - flat * y * y))) / a
        y = min(max(-lean, y0), y1)
        least = (b * y - math.sqrt(max(0.0, square - flat * y * y))) / a
        if u + least - MARGIN > _EDGE or u + farthest + MARGIN < -_EDGE:
            continue
        for column in range(place(u + least - MARGIN) >> shift, (place(u + farthest + MARGIN) >> shift) + 1):
            first = least_of(face, column << shift, row << shift, shift)
            spans.append((first + 1, first + whole - 1))
            lsb = whole << 1
            while lsb <= _FACE:
                ancestor = first & -lsb | lsb
                if ancestor in ancestors:
                    break  # and so are those around it
                ancestors.add(ancestor)
                lsb <<= 2
    spans += [(one, one) for one in ancestors]
    return spans


def _place(u: float) -> int:
    """i (or j) of a coordinate, or of the face's edge."""
    return min(face_place(min(max(u, -1.0), 1.0)), SIDE - 1)
