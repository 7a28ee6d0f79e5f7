"""One leader among several: claiming a term by a fenced transaction, standing by.

Whoever writes to the metadata topic does so under a claim from here (R3). Called by `coordinator.process`
and `coordinator.__main__`.
"""
