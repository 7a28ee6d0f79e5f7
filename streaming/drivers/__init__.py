"""What every Spark driver is, whatever it does: a process with arguments, signals, progress, failures and a
rate.

Used by `backfill`, `sample`, `verify` and `repair`.
"""
