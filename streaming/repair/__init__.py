"""Repair: what a verification finds wrong is put right, by corrections that slices make themselves.

Public: what is corrected (`corrections`), the way of a repair (`repair`), its messages to slices and what
they answer (`slices`), and the driver (`python -m streaming.repair --job ID`). Started by
`coordinator.process.driver_supervisor`. What a slice does with corrections, and why nothing newer is lost:
`indexer.slice.corrections`, docs/adr/0019.
"""
