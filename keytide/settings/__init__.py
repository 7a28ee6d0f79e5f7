"""Every setting and limit with its reason: `keytide.toml`, overridden by `KEYTIDE_*`, overridden by flags.

`settings` reads them all; the other modules have one section each. Names are a promise to users (`make
reference` lists them). Imported by the shells `coordinator.process`, `projector.service`, `indexer.serve`,
`streaming.drivers`, and by `keytide.cli` and `deploy`.
"""
