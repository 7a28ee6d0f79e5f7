"""Data folders that earlier releases made, small ones: `NAME.tar.xz`, NAME being the commit that made it.

`tests/integration/test_earlier_folder.py` opens each of them with the release at hand. A new one is made, by
the code to be remembered, with `python -m tests.earlier.make`. `releases` has the code of the release before
(`release.py`), which `tests/integration/test_upgrade.py` runs beside today's.
"""
