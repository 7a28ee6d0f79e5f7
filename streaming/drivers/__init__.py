"""What every Spark driver is, whatever it does: its life cycle, Spark, reports, failures and a rate.

`backfill`, `sample`, `verify` and `repair` are small programs in `lifecycle.Driver`.
"""
