"""The scan endpoint's face: routes, bodies, answers, problem documents, metrics, the OpenAPI page.

`endpoint` has what all routes share. Nothing of `plan`, `local` or `gather` imports it.
"""
