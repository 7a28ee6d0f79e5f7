"""`POST /v1/query`: a SELECT planned by `keytide.query`, read as scans and aggregates are.

Uses `plan`, `gather` and `aggregate`; imported by `indexer.scan.http` only.
"""
