"""The scan endpoint's face: routes, bodies, answers, problem documents, metrics, the OpenAPI page.

`endpoint` has what all routes share, and the way of scans and counts; `routes` has what can be asked. No
other room of a scan imports it. Imported by `indexer.serve` and `indexer.scan_processes`.
"""
