"""Geometries as numpy and shapely take them. Imported when something is to be tested, measured or covered.

Vectors (`sphere`), the planes on which edges are straight (`charts`), a geometry on them (`drawing`), also
where it is wider than one (`turned`, `wide`), whether a ring comes back to itself (`along`), how much work
all of that is (`work`), many polygons together (`rings`), and whether two of them meet, or one covers the
other (`meeting`). Called by the rest of `keytide.geometry` only.
"""
