"""The smallest words: distinct types for numbers and names, vector timestamps, topic names, entries as bytes,
and many of them as columns (`byte_columns`), what health and a log's past are. Pure.

Imports `keytide.errors` only. Imported by all rooms that need a word: of `keytide`, `projector`, `indexer`,
`coordinator`, `streaming` and `deploy`. `entry` is on the disks of running clusters: a change there needs a
reader for what is written.
"""
