"""Places in expressions and conditions, with PostGIS' names: how statements say them (`reading`), and what
they mean (`meaning`). Imported by `keytide.definition`, `keytide.query.plan`, `projector.core` and
`indexer.scan`."""
