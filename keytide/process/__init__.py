"""What every process does whatever it is for: its log, metrics, threads, files that are its own, its end when
its parent dies, named places at which tests may hold it.

Knows clock, files and signals: imported by shells, as `coordinator.process`, `projector.service`,
`indexer.serve`, `streaming.drivers`, and by no core.
"""
