"""`python -m streaming.verify --job ID`: compare the indexes of one job with their source, then end.

Exit status: 0 the report is written; 1 something was away, start it again (it begins again); 3 this job can
never work, the reason is in the last report and on stderr; 143 stopped on request. Settings come from
KEYTIDE_* and keytide.toml.
"""

from __future__ import annotations

import sys

from streaming.drivers.lifecycle import run_driver
from streaming.verify.driver import VerifyDriver

if __name__ == "__main__":
    sys.exit(run_driver(VerifyDriver, "streaming.verify", "Verify indexes."))
