"""Benchmarks on the real parts: a real broker, real processes, real documents.

What lives here: one module per benchmark, run by `python -m benchmarks NAME [--json]`; results with the
machine's state go to `benchmarks/results/`.

Who may import it: nobody. What it may import: everything.

Not to be touched lightly: the shape of the documents and the way a figure is counted. Change them and old
figures no longer compare; then say so in the results.
"""
