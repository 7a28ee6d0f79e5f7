"""Verification: an index at a snapshot against the source up to the snapshot's timestamp.

Public: the classes of differences (`core.difference`), the comparison (`core.comparing`), reading slices
(`slices`) and the source (`source`), the report (`report`), and the driver (`python -m streaming.verify
--job ID`). Started by `coordinator.process.driver_supervisor`; imported by `streaming.repair`.
"""
