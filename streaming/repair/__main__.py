"""`python -m streaming.repair --job ID`: repair the index of one job, then end.

Exit status, settings and environment as those of `python -m streaming.verify`.
"""

from __future__ import annotations

import sys

from streaming.drivers.lifecycle import run_driver
from streaming.repair.driver import RepairDriver

if __name__ == "__main__":
    sys.exit(run_driver(RepairDriver, "streaming.repair", "Repair an index."))
