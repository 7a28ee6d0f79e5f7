"""Where a machine allows no network namespaces, `.ci/run` leaves these tests out, and says so."""

from __future__ import annotations

import os

collect_ignore = ["test_hosts.py"] if os.environ.get("KEYTIDE_HOSTS") == "none" else []
