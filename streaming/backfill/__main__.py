"""`python -m streaming.backfill --build ID`: backfill the indexes of one build, then end.

Exit status: 0 the backfill has passed load and low-watermark timestamps; 1 something was away, start it again
(it goes on where it was); 3 this build can never work, the reason is in the last report and on stderr; 4 what
it has read is lost, or, 5, the journal that says what it was: the build must begin again; 143 stopped on
request. Settings come from KEYTIDE_* and keytide.toml (`keytide.settings.settings`); KEYTIDE_SPARK_JARS names
the jars of Spark's Kafka connector (`streaming.spark.session`).
"""

from __future__ import annotations

import sys

from streaming.backfill.driver import BackfillDriver
from streaming.drivers.lifecycle import run_driver

if __name__ == "__main__":
    sys.exit(run_driver(BackfillDriver, "streaming.backfill", "Backfill one build."))
