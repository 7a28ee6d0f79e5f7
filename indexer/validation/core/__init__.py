"""What is compared in validation, and what comes of it. Pure.

Called by `indexer.validation.service` and `indexer.validation.page`; primaries implement `primary`. Imports
the projector's pure core, alone in `indexer` (ADR 16).
"""
