"""Every setting and limit with its reason: `keytide.toml`, overridden by `KEYTIDE_*`, overridden by flags.

`settings` reads them all; the other modules have one section each. Names are a promise to users (`make
reference` lists them).
"""
