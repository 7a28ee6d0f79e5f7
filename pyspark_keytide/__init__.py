"""Where Spark finds the data source `keytide`: it imports every module whose name begins with `pyspark_` and
registers its `DefaultSource`.

What lives here: that name only; the source is `streaming.source`. Who may import it: Spark only. What it may
import: `streaming.source`. Not to be touched lightly: when this import fails, so does every look-up of a
Python data source in that Spark session.
"""

from streaming.source.default import DefaultSource

__all__ = ["DefaultSource"]
