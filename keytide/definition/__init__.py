"""Index definitions: the SQL that makes them, what it means, and the form in which metadata keeps it.

Theory of operation
===================
`parse_statement` turns one SQL statement (PostgreSQL flavour, docs/reference) into CreateIndex, DropIndex or
BuildIndex. A CREATE INDEX holds an `IndexDefinition`: immutable, JSON-serialisable, and complete:
projection needs nothing else. Its expressions are small trees (`expression`), their meaning is in
`semantics`, and `render` writes them as SQL again, in a normal form.

Names in documents keep their case, quoted or not. `id` is the document id; a field of that name is `"id"`.
Array positions count from 0.

Errors: `InvalidStatementError` (problem type `invalid-statement`) with line, column and a caret;
`NotThereYetError` (`not-there-yet`) for what is understood and not supported in this release;
`QueryElsewhereError` (`ask-a-node`) for queries, which are `keytide.query`'s.
"""

from keytide.definition.errors import InvalidStatementError, NotThereYetError, QueryElsewhereError
from keytide.definition.expression import (
    And,
    Binary,
    Call,
    Cast,
    Comparison,
    DocumentId,
    Expression,
    In,
    IsMissing,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Path,
    Predicate,
    Truth,
    Unnest,
    same,
    walk,
)
from keytide.definition.index import DEFAULT_SLICES, MAX_SLICES, IndexDefinition, KeyPart
from keytide.definition.render import path_name, render_expression, render_predicate
from keytide.definition.statement import BuildIndex, CreateIndex, DropIndex, Statement, parse_statement

__all__ = [
    "DEFAULT_SLICES",
    "MAX_SLICES",
    "And",
    "Binary",
    "BuildIndex",
    "Call",
    "Cast",
    "Comparison",
    "CreateIndex",
    "DocumentId",
    "DropIndex",
    "Expression",
    "In",
    "IndexDefinition",
    "InvalidStatementError",
    "IsMissing",
    "IsNull",
    "KeyPart",
    "Like",
    "Literal",
    "Negate",
    "Not",
    "NotThereYetError",
    "Or",
    "Path",
    "Predicate",
    "QueryElsewhereError",
    "Statement",
    "Truth",
    "Unnest",
    "parse_statement",
    "path_name",
    "render_expression",
    "render_predicate",
    "same",
    "walk",
]
