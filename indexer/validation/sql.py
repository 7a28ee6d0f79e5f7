"""A primary in a database: one table or view, read through SQLAlchemy.

Theory of operation
===================
The table is looked at once (its columns and their types), so that a setting that cannot be is told in words,
and ids are compared as what the id column holds: for a column of integers the document id "7" is 7, and "07"
is nobody. Then every call takes one connection of a pool, in a read-only transaction, and asks for ids by
`IN` lists of `batch_ids`.

Documents come as JSON text as it is stored, or are put together from columns, one per top-level field. What
has no form of its own in JSON (dates, UUIDs, ...) becomes a string in its usual form (ISO 8601), numbers that
are none (NaN, infinities) become null: where the producer writes it otherwise, a view or a document column
must say the same.

Whether the database has a version is told by the offset in the row, or by `position_query`. That is asked
first, so that it can only be too low. Without both the database is taken to be where documents are written
first.

Nothing of the url is ever in an error or the log but through `_plain`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from decimal import Decimal
from time import monotonic
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sql
from sqlalchemy import exc

from indexer.validation.core.primary import (
    AnsweredDocument,
    PrimaryAnswer,
    PrimaryMisconfiguredError,
    PrimaryUnreachableError,
)
from keytide.model.timestamp import Timestamp
from keytide.settings.settings import PrimarySettings

log = logging.getLogger(__name__)

_AWAY: Final = (exc.OperationalError, exc.InterfaceError, exc.TimeoutError, exc.DisconnectionError)
"""What SQLAlchemy raises for a database that does not answer, or not in time."""
_RECYCLE_S: Final = 600
"""A connection is replaced after so long: firewalls forget idle ones."""

_encode = msgspec.json.Encoder(decimal_format="number", enc_hook=str).encode
_Id = Callable[[str], Any]
"""A document id as its column has it; None when no row can have it."""


class _Table(NamedTuple):
    """The columns of the settings, as they were found.

    Attributes:
        padded: ids come with spaces up to the length of the column (`char(n)`).
        fields: by field of the document.
    """

    id: sql.ColumnElement[Any]
    to_column: _Id
    padded: bool
    document: sql.ColumnElement[Any] | None
    fields: dict[str, sql.ColumnElement[Any]]
    partition: sql.ColumnElement[Any] | None
    offset: sql.ColumnElement[Any] | None


class SqlPrimary:
    """Documents of one keyspace in a database.

    Args:
        keyspace: for errors.
        settings: of kind `sql`.

    Raises:
        PrimaryMisconfiguredError: the url is none, or its driver is not installed.
    """

    def __init__(self, keyspace: str, settings: PrimarySettings) -> None:
        self._keyspace = keyspace
        self._settings = settings
        self._table: _Table | None = None
        try:
            url = sql.make_url(settings.url.get_secret_value())
            self._password = url.password or ""
            self._postgres = url.get_backend_name() == "postgresql"
            self._engine = sql.create_engine(
                url,
                pool_size=settings.connections,
                max_overflow=0,
                pool_timeout=settings.connect_timeout_s,
                pool_pre_ping=True,
                pool_recycle=_RECYCLE_S,
                hide_parameters=True,
                poolclass=sql.QueuePool,
                connect_args={"connect_timeout": settings.connect_timeout_s} if self._postgres else {},
            )
        except (exc.ArgumentError, ValueError) as error:
            raise self._misconfigured("its url is not one of SQLAlchemy's") from error
        except ImportError as error:
            raise self._misconfigured(
                f"the database's driver is not installed ({error.name})",
                "pip install 'keytide[sql]' brings psycopg (postgresql+psycopg://...)",
            ) from error
        self._position = sql.text(settings.position_query) if settings.position_query else None

    def documents(
        self, asked: Sequence[AnsweredDocument], fields: Collection[str], since: Timestamp, timeout_s: float
    ) -> list[PrimaryAnswer]:
        """As `Primary.documents`; `since` is of no use here."""
        ends_at = monotonic() + timeout_s
        try:
            with self._engine.connect() as connection:
                if self._postgres:
                    connection = connection.execution_options(postgresql_readonly=True)
                self._limit(connection, ends_at)
                table = self._table = self._table or self._look_at_table(connection)
                self._check_fields(table, fields)
                rows: dict[bytes, PrimaryAnswer] = {}
                positions = self._positions(connection)
                for some in _batches(asked, self._settings.batch_ids):
                    self._limit(connection, ends_at)
                    rows.update(self._read(connection, table, some, fields, positions))
        except _AWAY as error:
            log.warning("the primary of %s: %s", self._keyspace, self._plain(error))
            raise PrimaryUnreachableError(
                f"the primary of {self._keyspace} does not answer ({type(error).__name__})",
                next_step="the node's log says more",
            ) from error
        except exc.SQLAlchemyError as error:
            self._table = None  # it may have been changed: look again
            log.warning("the primary of %s: %s", self._keyspace, self._plain(error))
            raise self._misconfigured(f"it refuses what it is asked ({type(error).__name__})") from error
        return [rows.get(one.id) or self._absent(one, positions) for one in asked]

    def close(self) -> None:
        self._engine.dispose()

    # --- the table ------------------------------------------------------------------------------------

    def _look_at_table(self, connection: sql.Connection) -> _Table:
        """The settings' columns, as they are in the database."""
        settings = self._settings
        schema, _, name = settings.table.rpartition(".")
        try:
            table = sql.Table(name, sql.MetaData(), schema=schema or None, autoload_with=connection)
        except exc.NoSuchTableError as error:
            raise self._misconfigured(f"there is no table {settings.table}, or none to see") from error

        def column(named: str, setting: str) -> sql.Column[Any]:
            if named not in table.c:
                known = ", ".join(table.c.keys())
                raise self._misconfigured(
                    f"{setting}: table {settings.table} has no column {named} ({known})"
                )
            return table.c[named]

        id_column = column(settings.id_column, "id_column")
        document = settings.document_column
        wide = isinstance(id_column.type, sql.Integer)  # an id may be beyond what the column can hold
        return _Table(
            sql.type_coerce(id_column, sql.BigInteger) if wide else id_column,
            self._id_of(id_column),
            isinstance(id_column.type, sql.CHAR),
            _as_text(column(document, "document_column")) if document else None,
            {field: column(named, "columns") for field, named in settings.columns.items()},
            column(settings.partition_column, "partition_column") if settings.partition_column else None,
            column(settings.offset_column, "offset_column") if settings.offset_column else None,
        )

    def _id_of(self, column: sql.Column[Any]) -> _Id:
        """How document ids are written in the id column."""
        if isinstance(column.type, sql.Integer):
            return _integer
        if isinstance(column.type, sql.Uuid):
            return _uuid
        if isinstance(column.type, sql.String):
            return _string
        raise self._misconfigured(f"id_column: {column.name} is {column.type!r}, not text, integer or uuid")

    def _check_fields(self, table: _Table, fields: Collection[str]) -> None:
        """Raise unless the settings name a column for every field that decides."""
        missing = sorted(set(fields) - table.fields.keys())
        if missing and table.document is None:
            raise self._misconfigured(f"columns: no column is named for {', '.join(missing)}")

    # --- one call -------------------------------------------------------------------------------------

    def _limit(self, connection: sql.Connection, ends_at: float) -> None:
        """Have the database give up a query when its answer is of no use any more."""
        left_ms = round((ends_at - monotonic()) * 1000)
        if left_ms <= 0:
            raise exc.TimeoutError("the time of the request is over")
        if self._postgres:
            connection.execute(sql.text(f"SET LOCAL statement_timeout = {left_ms}"))

    def _positions(self, connection: sql.Connection) -> dict[int, int] | None:
        """Partition -> next offset that the database has; None when it is not told."""
        if self._position is None:
            return None
        rows = connection.execute(self._position).all()
        try:
            return {int(partition): int(offset) for partition, offset in rows if offset is not None}
        except (TypeError, ValueError) as error:
            raise self._misconfigured("position_query gives no (partition, next offset) rows") from error

    def _read(
        self,
        connection: sql.Connection,
        table: _Table,
        asked: Sequence[AnsweredDocument],
        fields: Collection[str],
        positions: dict[int, int] | None,
    ) -> Iterator[tuple[bytes, PrimaryAnswer]]:
        """(id, what is found) of those that are in the table."""
        wanted = {key: one for one in asked if (key := table.to_column(one.id.decode())) is not None}
        if not wanted:
            return
        names = sorted(fields) if table.document is None else []
        columns = [table.id]
        columns += [table.fields[name] for name in names] if table.document is None else [table.document]
        columns += [one for one in (table.offset, table.partition) if one is not None]
        query = sql.select(*(column.label(f"c{at}") for at, column in enumerate(columns)))
        for row in connection.execute(query.where(table.id.in_(list(wanted)))):
            document: bytes | None
            if table.document is None:
                document = self._document(names, row[1 : 1 + len(names)])
                told = row[1 + len(names) :]
            else:
                document, told = _json(row[1]), row[2:]
            keys = {row[0], row[0].rstrip(" ")} if table.padded else (row[0],)
            for one in (wanted[key] for key in keys if key in wanted):
                # No other id: what is equal to the database only has a case-insensitive collation.
                yield one.id, PrimaryAnswer(document, self._position_of(one, told, positions))

    def _document(self, names: Sequence[str], values: Sequence[Any]) -> bytes:
        """A document put together from columns."""
        members = zip(names, map(_in_json, values), strict=True)
        if self._settings.nulls == "missing":
            return _encode({name: value for name, value in members if value is not None})
        return _encode(dict(members))

    def _position_of(
        self, asked: AnsweredDocument, told: Sequence[Any], positions: dict[int, int] | None
    ) -> int | None:
        """Up to where the database has the partition of a document, as far as its row and all tell."""
        if not told and positions is None:
            return None
        known = (positions or {}).get(asked.partition, 0)
        if told and told[0] is not None:
            of_partition = len(told) < 2 or told[1] == asked.partition
            known = max(known, int(told[0]) + 1 if of_partition else 0)
        return known

    def _absent(self, asked: AnsweredDocument, positions: dict[int, int] | None) -> PrimaryAnswer:
        """What is said of a document that has no row."""
        if positions is not None:
            return PrimaryAnswer(None, positions.get(asked.partition, 0))
        return PrimaryAnswer(None, 0 if self._settings.offset_column else None)

    # --- errors ---------------------------------------------------------------------------------------

    def _misconfigured(self, what: str, next_step: str = "") -> PrimaryMisconfiguredError:
        return PrimaryMisconfiguredError(
            f"the primary of {self._keyspace} cannot be asked: {what}",
            next_step=next_step or f"set it right in [primary.{self._keyspace}] and start the node again",
        )

    def _plain(self, error: Exception) -> str:
        """An error in words, without the password."""
        text = str(getattr(error, "orig", None) or error)
        return text.replace(self._password, "***") if self._password else text


def _batches(asked: Sequence[AnsweredDocument], size: int) -> Iterator[Sequence[AnsweredDocument]]:
    for at in range(0, len(asked), size):
        yield asked[at : at + size]


def _string(text: str) -> str | None:
    return None if "\x00" in text else text  # which no column of text can hold


def _integer(text: str) -> int | None:
    try:
        number = int(text)
    except ValueError:
        return None
    return number if str(number) == text and -(2**63) <= number < 2**63 else None


def _uuid(text: str) -> uuid.UUID | None:
    try:
        number = uuid.UUID(text)
    except ValueError:
        return None
    return number if str(number) == text else None


def _in_json(value: Any) -> Any:
    """A column's value with null for the decimals that JSON has not (msgspec writes null for such floats)."""
    if isinstance(value, Decimal):
        return value if value.is_finite() else None
    return [_in_json(one) for one in value] if isinstance(value, list) else value


def _as_text(column: sql.Column[Any]) -> sql.ColumnElement[Any]:
    """A document column as it is stored: numbers must not go through a driver's idea of JSON."""
    return sql.cast(column, sql.Text) if isinstance(column.type, sql.JSON) else column


def _json(value: Any) -> bytes | None:
    """The bytes of a stored document; None for NULL, which is no document."""
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode() if isinstance(value, str) else bytes(value)
