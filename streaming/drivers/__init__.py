"""What every driver is, whatever it does: its life cycle, what runs its tasks (Spark, or itself), reports,
failures and a rate.

`backfill`, `sample`, `verify` and `repair` are small programs in `lifecycle.Driver`. Imported by
`streaming.backfill`, `streaming.sample`, `streaming.verify`, `streaming.repair`.
"""
