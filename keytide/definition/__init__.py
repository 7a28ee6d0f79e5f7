"""Index definitions: the SQL that makes them, what it means, and the form in which metadata keeps it.

Theory of operation
===================
`statement.parse_statement` turns one SQL statement (PostgreSQL flavour, docs/reference) into CreateIndex,
AlterIndex, DropIndex or BuildIndex. A CREATE INDEX holds an `IndexDefinition`: immutable, JSON-serialisable,
and complete: projection needs nothing else. Its expressions are small trees (`expression`), their meaning is
in `semantics`, and `render` and `normal` write them, and all of it, as SQL again, in a normal form.

Names in documents keep their case, quoted or not. `id` is the document id; a field of that name is `"id"`.
Array positions count from 0.

Imported by `coordinator.statements`, which carries statements out, `projector.core`, which projects by them,
`keytide.query` and `indexer.scan`.

Errors: `InvalidStatementError` (problem type `invalid-statement`) with line, column and a caret;
`QueryElsewhereError` (`ask-a-node`) for queries, which are `keytide.query`'s.
"""
