"""From the text of a SELECT to `Select`: plain immutable data with conditions in a normal form. Pure.

It begins with `statement.parse_query`. Whatever the text, the answer is a `Select` or an error with its place
in the text. Called by `keytide.query.plan`, `indexer.scan.query` and `streaming.source.core`.
"""
