"""Stability timestamps: when one is issued, which numbers slices have in common, how far timestamps may go.
Pure.

Told by `coordinator.leader`. R1 to R9 live here on the leader's side; nothing else issues a number.
"""
