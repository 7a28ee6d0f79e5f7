"""What a load and its tasks ask of nodes.

A driver asks once, at `load()`: a hold of a snapshot, the columns and their types, and which slices can hold
what is selected. A task asks for one slice at that snapshot. Nodes that are busy (they bound how many streams
they run at once) are asked again for a while.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from keytide.client import Client
from keytide.errors import CallerError, InvariantViolationError, KeytideError, RetryableError
from streaming.source.columns import IndexColumn, columns_of, groups_of, key_names, types_of
from streaming.source.core.options import Options
from streaming.source.core.where import selection_of

if TYPE_CHECKING:
    import pyarrow as pa

RETRIES: Final = 60
"""How often all nodes are asked again, at most 2 s apart: more tasks than `scan.max_streams` wait for each
other."""

_HELP: Final = {
    "snapshot-gone": "The DataFrame's snapshot is no longer held: load it again. It is kept for `lease_s` "
    "seconds after its last use: give that option a larger value where a job is longer without reading.",
    "type-changed": "Load again with this column as json (or a wider type) in option `types`.",
    "unknown-index": "Option `index` names the index.",
    "not-allowed": "Option `token` takes an API token with scope `read`.",
}
"""What to do about some problems, in the words of options."""


@dataclass(frozen=True)
class IndexSnapshot:
    """An index at a snapshot.

    Attributes:
        at: token of the held snapshot.
        slices: which of the index's slices can hold what is selected.
        columns: with their types.
        selection: members of a scan request; None when nothing can be selected.
    """

    at: str = field(repr=False)
    slices: tuple[int, ...]
    columns: tuple[IndexColumn, ...]
    selection: Mapping[str, Any] | None


def open_index(options: Options) -> IndexSnapshot:
    """Hold a snapshot of an index, and learn what tasks must know.

    Raises:
        KeytideError: no such index, not ready, no such option value, no node answers.
    """
    with (
        _told(),
        Client(options.urls, token=options.token, retries=RETRIES) as client,
        ExitStack() as if_it_fails,
    ):
        at = options.at
        if at is None:
            hold = client.snapshot(options.index, lease_s=options.lease_s, **options.moment)
            at = if_it_fails.enter_context(hold).at
        asking = {"at": at, **options.waiting}
        types = dict(options.types)
        scan = client.scan(options.index, **asking, **options.selection)
        columns = columns_of(scan.schema(types=types))
        scan.close()
        selection: Mapping[str, Any] | None = options.selection
        if options.where:
            selection = selection_of(options.where, key_names(columns))
        slices: tuple[int, ...] = ()
        if selection is not None:
            page = client.page(options.index, limit=1, columns=["id"], explain=True, **asking, **selection)
            slices = tuple(one["slice"] for one in (page.explain or {})["slices"])
        if_it_fails.pop_all()  # the hold stays: nobody tells a data source that its last job is over
        return IndexSnapshot(at, slices, tuple(columns), selection)


def read_slice(
    options: Options, opened: IndexSnapshot, slice_number: int, columns: tuple[IndexColumn, ...]
) -> Iterator[pa.RecordBatch]:
    """The rows of one slice, with these columns and perhaps more of their group.

    Raises:
        KeytideError: the snapshot is gone, a value does not fit its column, no node answers, a stream broke.
    """
    wanted = [column for column in opened.columns if column.group in groups_of(columns)]
    asked = {column.name: column for column in columns}
    types = types_of([asked.get(column.name, replace(column, kind="json")) for column in wanted])
    urls = options.urls_for(slice_number)
    with _told(), Client(urls, token=options.token, retries=RETRIES) as client:
        scan = client.scan(
            options.index,
            at=opened.at,
            slices=[slice_number],
            columns=groups_of(columns),
            **options.waiting,
            **(opened.selection or {}),
        )
        yield from scan.batches(types=types, any_order=True)


@contextmanager
def _told() -> Iterator[None]:
    """Errors with all that they know in their message: Spark shows nothing else of them."""
    try:
        yield
    except InvariantViolationError:
        raise
    except KeytideError as error:
        steps = [step for step in (_HELP.get(error.problem_type), error.next_step) if step]
        family = RetryableError if isinstance(error, RetryableError) else CallerError
        raise family(
            ". ".join([error.message.rstrip("."), *steps[:1]]),
            problem_type=error.problem_type,
            status=error.status,
            next_step=error.next_step,
        ) from None
