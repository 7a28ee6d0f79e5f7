"""`keytide trace`: from the words of the command line to what is printed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from deploy.trace.entries import IndexEntries, entries_of, looked_for
from deploy.trace.logs import LogSearch
from deploy.trace.rendering import show
from deploy.trace.source import newest_record
from deploy.trace.stretches import Say, Stretches
from keytide.catalog.catalog import Catalog
from keytide.catalog.history import History
from keytide.catalog.records import IndexRecord
from keytide.cli.data_folder import running_state
from keytide.cli.nodes import reader
from keytide.cli.options import DEFAULT_DATA_DIR, give_up_s
from keytide.cli.output import err, print_json
from keytide.errors import CallerError
from keytide.kafka.admin import KafkaUnavailableError
from keytide.kafka.topics import CatalogReader
from keytide.model.topics import Topics
from keytide.settings.settings import Settings, load_settings
from keytide.trace.hops import TraceInput, trace
from keytide.trace.records import DocumentTrace, traced_index


class TraceOptions(NamedTuple):
    """What the command was given.

    Attributes:
        name: of a keyspace, or of an index: then of that one alone.
        only: the only index to look at, "" for all of the keyspace.
        partition: the source partition to look in, None for all.
        last: offsets of each partition to look at.
        kafka, cluster: where, "" for those of the data folder's cluster, or of the settings.
    """

    name: str
    document: str
    only: str
    partition: int | None
    last: int
    kafka: str
    cluster: str
    url: str | None
    data_dir: Path
    as_json: bool


def run(options: TraceOptions) -> None:
    """Print what became of a document's newest record.

    Raises:
        CallerError: there is no such keyspace, index or document.
        KafkaUnavailableError: Kafka does not answer.
    """
    settings = settings_of(options)
    try:
        with _progress() as say:
            say("reading the dictionary")
            with closing(CatalogReader(settings)) as dictionary:
                catalog = dictionary.start(give_up_s())
            keyspace, records = wanted(catalog, options.name, options.only)
            found, entries = _traced(settings, catalog, keyspace, records, options, say)
    except KafkaUnavailableError as error:
        where = f"asked was Kafka at {settings.kafka.bootstrap} for the cluster {settings.cluster}"
        error.next_step = error.next_step or "see `keytide doctor`"
        error.next_step += f"; {where}: name others with --kafka and --cluster"
        raise
    if options.as_json:
        print_json(as_json(found, entries))
    else:
        show(found, entries)


def settings_of(options: TraceOptions) -> Settings:
    """The settings, with the Kafka and the cluster that are meant: those that are named, else those of the
    cluster that runs on the data folder (unless --url names another one), else what the settings say.

    Raises:
        CallerError: the folder that was named has no cluster.
    """
    elsewhere = options.kafka or options.url or os.environ.get("KEYTIDE_URL")
    state = {} if elsewhere else running_state(options.data_dir, DEFAULT_DATA_DIR) or {}
    kafka = options.kafka or state.get("kafka")
    cluster = options.cluster or state.get("cluster")
    return load_settings(kafka={"bootstrap": str(kafka)} if kafka else None, cluster=cluster or None)


def wanted(catalog: Catalog, name: str, index: str) -> tuple[str, list[IndexRecord]]:
    """The keyspace, and the indexes of it that are looked at; one whose name another has taken over only by
    its id.

    Raises:
        CallerError: there is none of that name.
    """
    keyspaces = {one.name for one in catalog.keyspaces()}
    named = catalog.index_by_name(name)
    if name not in keyspaces:
        if named is None:
            known = ", ".join(sorted(keyspaces)) or "there are none"
            raise CallerError(
                f"there is no keyspace {name}, and no index of that name",
                problem_type="keyspace-not-found",
                status=404,
                next_step=f"keyspaces are: {known}; an index makes a topic one",
            )
        name, index = named.keyspace, index or name
    shown = catalog.shown_names()
    records = [
        one
        for one in catalog.indexes(name)
        if one.state != "DROPPING"
        and (index == one.id or (index in ("", shown[one.id]) and not one.replaced_by))
    ]
    if index and not records:
        raise CallerError(
            f"keyspace {name} has no index {index}",
            problem_type="index-not-found",
            status=404,
            next_step="see `keytide index list`",
        )
    return name, records


def _traced(
    settings: Settings,
    catalog: Catalog,
    keyspace: str,
    records: Sequence[IndexRecord],
    options: TraceOptions,
    say: Say,
) -> tuple[DocumentTrace, dict[str, IndexEntries]]:
    with Stretches(settings, give_up_s()) as stretches:
        found = newest_record(stretches, keyspace, options.document, options.partition, options.last, say)
        record, now = found.record, time.time_ns() // 1_000_000
        indexes = [traced_index(catalog, one, record.partition, record.offset) for one in records]
        history = History.of(catalog, keyspace)
        search = LogSearch(stretches, Topics(settings.cluster), keyspace, history, record, say, now)
        control = search.control([one for one in indexes if one.state == "READY"])
        reports = search.reports(control, [one for one in indexes if one.emits])
        queues = search.queues(control, reports, indexes)
    entries = entries_of(found, records)
    outcomes = {id_: one.outcome for id_, one in entries.items()}
    told = trace(
        keyspace,
        options.document,
        TraceInput(record, indexes, control, reports, queues, outcomes, now),
    )
    say("asking for its entries")
    return told, looked_for(
        entries, told.indexes, options.document, lambda: reader(None, options.url, options.data_dir)
    )


def as_json(told: DocumentTrace, entries: dict[str, IndexEntries]) -> dict[str, object]:
    """The trace as one document: its index traces have `entries`, and `entries_trouble` beside."""
    document: dict[str, object] = msgspec.to_builtins(told)
    document["indexes"] = [
        {
            **msgspec.to_builtins(one),
            "entries": msgspec.to_builtins(entries[one.id].entries),
            "entries_trouble": entries[one.id].trouble,
        }
        for one in told.indexes
    ]
    return document


@contextmanager
def _progress() -> Iterator[Say]:
    """A line on standard error that says what is being done; none where no person looks."""
    with err.status("", spinner="dots") as status:
        yield lambda text: status.update(text)
