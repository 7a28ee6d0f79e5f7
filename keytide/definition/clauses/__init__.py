"""Reading CREATE INDEX, and what ALTER INDEX shares with it: its frame and clauses (`create`), PARTITION BY
and SUBPARTITION BY (`partitioning`), options and numbers (`options`).

Called by `keytide.definition.statement` alone. What stands inside a clause is read by
`keytide.definition.sql`; a new clause is a method of `CreateReader` and its name among the clauses, a new
option a branch there. Pure.
"""
