"""Cells: ids of squares of the sphere and of the plane, what documents take of them, and what queries read.

Ids (`curve`) of positions in degrees (`geographic`) and in a plane (`plane`); the covering of a geometry
(`covering`; `quick` of what there mostly is, `many` of a batch of that); the stretches of ids that a query
reads (`spans`), and a search for what lies around a place (`disc`). Called by the rest of `keytide.geometry`
only, which says to others what they need.
"""
