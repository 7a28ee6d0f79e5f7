"""What every process does whatever it is for: its log, metrics, threads, files that are its own, its end when
its parent dies, named places at which tests may hold it.

Imported by shells only: it knows clock, files and signals.
"""
