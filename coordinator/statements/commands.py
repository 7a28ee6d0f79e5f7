"""CREATE, ALTER, DROP, BUILD INDEX, steering builds, starting jobs: what they may do, what follows. Pure.

Each command checks first and changes the dictionary only when nothing is in the way; errors say what to do
next. The state of a source comes from the caller, who has just looked them up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from coordinator.builds.builds import Builds
from coordinator.builds.pausing import BY_OPERATOR
from coordinator.builds.registry import FINAL
from coordinator.catalog.dictionary import Dictionary
from coordinator.catalog.registry import ConflictError
from coordinator.copies.moving import Moves
from coordinator.core.instructions import Instruction, Note
from coordinator.core.source_status import SourceStatus
from coordinator.jobs.registry import DRAIN
from coordinator.jobs.registry import FINAL as JOB_FINAL
from coordinator.layouts.dropping import drop
from coordinator.sources.table_origins import refused
from coordinator.statements.altering import altered, rename
from coordinator.statements.copy_rates import drain_of, set_rate
from coordinator.statements.keyspaces import take_keyspace
from coordinator.statements.names import check_name, taken
from coordinator.statements.replacing import alter, like_before, replace_index
from keytide.catalog.copies import Move
from keytide.catalog.records import BuildRecord, IndexRecord, JobKind
from keytide.catalog.table_origin import TableOrigin
from keytide.definition.errors import InvalidStatementError
from keytide.definition.index import IndexDefinition
from keytide.definition.statement import (
    AlterIndex,
    BuildIndex,
    CreateIndex,
    DropIndex,
    MergePartitions,
    RenameIndex,
    SplitPartition,
    SpreadPartition,
    Statement,
)
from keytide.errors import CallerError
from keytide.model.protocol import SPOKEN


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command did.

    Attributes:
        message: in words.
        index: the index that it was about, as it is now; None when there is none.
        build: the build that it started.
        job: id of the job that it started or ended, "" for none.
        instructions: what is to be done for it (the answer goes out when the first `Write` is committed).
    """

    message: str
    index: IndexRecord | None
    build: BuildRecord | None
    job: str
    instructions: list[Instruction]


class Commands:
    """What users order. Each raises `CallerError` when it cannot be done; nothing is changed then.

    Args:
        moves: drains and rebalances.
        settle: puts the writes of a change before what follows from it.
        default_replicas: of indexes whose statement does not say.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        builds: Builds,
        moves: Moves,
        settle: Callable[[Sequence[Instruction], int], list[Instruction]],
        default_replicas: int = 0,
    ) -> None:
        self._dictionary = dictionary
        self._builds = builds
        self._moves = moves
        self._settle = settle
        self._default_replicas = default_replicas

    def _done(
        self,
        now: int,
        message: str,
        index: IndexRecord | None = None,
        build: BuildRecord | None = None,
        job: str = "",
        out: Sequence[Instruction] = (),
    ) -> CommandResult:
        return CommandResult(message, index, build, job, self._settle(out, now))

    def execute(self, statement: Statement, source: SourceStatus | None, now: int) -> CommandResult:
        """CREATE, ALTER, DROP or BUILD INDEX.

        Args:
            source: of the keyspace, looked up just now (CREATE INDEX needs it; ALTER INDEX with other slices
                looks at it: `asks_for_layout`).
        """
        match statement:
            case CreateIndex(definition, if_not_exists, said, or_replace):
                if source is None:
                    raise ValueError("CREATE INDEX needs its source")
                old = self._dictionary.catalog.index_by_name(definition.name) if or_replace else None
                if old is not None:
                    wanted = like_before(definition, said, old)
                    text, index, build, out = replace_index(self._builds, old, wanted, source, now)
                    return self._done(now, text, index, build, out=out)
                if fault := definition.slices_fault:
                    text = definition.statement
                    said_at = [*re.finditer(r"SUBPARTITION\s++BY", text, re.IGNORECASE)]
                    at, end = said_at[-1].span() if said_at else (0, len(text))
                    raise InvalidStatementError(fault[0], text, at, end, next_step=fault[1])
                if self._default_replicas and "replicas" not in said:
                    definition = altered(definition, replicas=self._default_replicas)
                return self.create(definition, if_not_exists, source, now)
            case AlterIndex() | SplitPartition() | MergePartitions() | SpreadPartition():
                text, index, build, out = alter(self._builds, statement, source, now)
                return self._done(now, text, index, build, out=out)
            case RenameIndex(name, new_name):
                text, index, notes = rename(self._dictionary, name, new_name)
                return self._done(now, text, index, out=notes)
            case DropIndex(name, if_exists):
                return self.drop(name, now, if_exists)
            case BuildIndex(keyspace, names):
                return self.build(list(names), 0, now, keyspace=keyspace)

    def create(
        self, definition: IndexDefinition, if_not_exists: bool, source: SourceStatus, now: int
    ) -> CommandResult:
        """CREATE INDEX: write the definition; unless that is deferred, queue its build.

        Raises:
            ConflictError: the name is taken, or the topic is another one than its other indexes are built on.
            NoSuchKeyspaceError: there is no such topic.
            CallerError: topics cannot be named after it.
        """
        existing = self._dictionary.catalog.index_by_name(definition.name)
        if existing is not None:
            if if_not_exists:
                return self._done(now, f"index {definition.name} exists, nothing is done", existing)
            raise taken(existing)
        check_name(self._dictionary.topics, definition.name)
        take_keyspace(self._dictionary, definition.keyspace, source)
        index = self._dictionary.define(definition, now)
        note = Note("info", "index-created", index.name, f"index {index.name} on {index.keyspace} is defined")
        if definition.defer_build:
            text = f"index {index.name} is defined; BUILD INDEX ON {index.keyspace} ({index.name}) builds it"
            return self._done(now, text, index, out=[note])
        build = self._builds.request([index], 0, now)
        text = f"index {index.name} is defined; build {build.id} begins"
        return self._done(now, text, self._dictionary.catalog.index(index.id), build, out=[note])

    def drop(self, name: str, now: int, if_exists: bool = False) -> CommandResult:
        """DROP INDEX: out of service at once; its topics go when the projectors have let go of it.

        Raises:
            NoSuchIndexError: there is none, and `if_exists` was not said.
        """
        if if_exists and self._dictionary.catalog.index_by_name(name) is None:
            return self._done(now, f"there is no index {name}, nothing is done")
        index = self._dictionary.index_named(name)
        out, build = drop(self._builds, index, now)
        for other in self._dictionary.catalog.layouts(name):
            out += drop(self._builds, other, now)[0]
        message = f"index {name} is being dropped"
        if build is not None:
            names = ", ".join(self._builds.registry.names(build))
            message += f"; the build of {names} starts again without it, as {build.id}"
        out.append(Note("info", "index-dropping", name, message))
        return self._done(now, message, build=build, out=out)

    def build(
        self,
        names: list[str],
        rate_limit: int,
        now: int,
        origin: TableOrigin | None = None,
        source: SourceStatus | None = None,
        verify: bool | Literal["full"] | None = None,
        keyspace: str | None = None,
    ) -> CommandResult:
        """BUILD INDEX: queue one build, with one read of the source, of several indexes of one keyspace.

        Args:
            origin: a table to begin with, in place of the log's beginning.
            source: of the keyspace, looked up just now (a table needs them).
            verify: whether they are READY only verified; `full`: by a second read of the source alone; None
                for what the settings say.
            keyspace: the one that they must be of; None for that of the first.

        Raises:
            NoSuchIndexError: one of them does not exist.
            ConflictError: one is built, or being built, or they are of several keyspaces.
            CallerError: the build cannot begin with this table.
        """
        if not names:
            raise CallerError("no index is named", status=422, next_step="name the indexes to build")
        indexes = [self._dictionary.index_named(name) for name in dict.fromkeys(names)]
        wanted = keyspace if keyspace is not None else indexes[0].keyspace
        for index in indexes:
            if index.keyspace != wanted:
                raise ConflictError(
                    f"index {index.name} is on {index.keyspace}, not on {wanted}",
                    next_step="build the indexes of each keyspace in a build of their own",
                )
            active = self._builds.registry.active(index)
            if active is not None or index.state not in ("DEFERRED", "FAILED"):
                doing = f"is in build {active.id}, {active.state}" if active else f"is {index.state}"
                raise ConflictError(
                    f"index {index.name} {doing}",
                    problem_type="index-not-buildable",
                    next_step="only DEFERRED and FAILED indexes can be built",
                )
        if origin is not None and source is not None:
            origin = self._accepted(origin, source)
        build = self._builds.request(indexes, rate_limit, now, origin=origin, verify=verify)
        names_now = ", ".join(index.name for index in indexes)
        return self._done(now, f"build {build.id} of {names_now} begins", build=build)

    def _accepted(self, origin: TableOrigin, source: SourceStatus) -> TableOrigin:
        """The origin, with the history that its offsets are of; whether it holds is looked at again when the
        build starts."""
        if reason := refused(origin, source):
            raise CallerError(
                reason,
                problem_type="origin-unusable",
                status=422,
                next_step="docs/initial-state.md says what a build may begin with",
            )
        incarnation = self._builds.registry.incarnation(source.keyspace)
        return replace(origin, topic_id=source.topic_id, incarnation=incarnation)

    def cancel(self, build: str, now: int) -> CommandResult:
        """Cancel a build.

        Raises:
            NoSuchBuildError: there is none.
            ConflictError: it is over.
        """
        record = self._builds.registry.get(build)
        if record.state in FINAL:
            raise ConflictError(
                f"build {build} is over, it is {record.state}",
                problem_type="build-over",
                next_step="there is nothing to cancel; DROP INDEX removes what it built",
            )
        out = self._builds.registry.cancel(record, "on request", now)
        return self._done(now, f"build {build} is cancelled", build=self._builds.registry.get(build), out=out)

    def pause(self, build: str, now: int) -> CommandResult:
        """Have a build pause until it is resumed; nothing happens to one that pauses on request already. One
        that verifies keeps its state: its job is held (`coordinator.jobs.jobs`).

        Raises:
            NoSuchBuildError: there is none.
            ConflictError: it reads nothing any more.
        """
        record = self._reading(build, "pause")
        if record.paused_by == "operator":
            return self._done(now, f"build {build} pauses already", build=record)
        out = self._builds.pausing.pause(record, "operator", BY_OPERATOR, now)
        return self._done(now, f"build {build} pauses", build=self._builds.registry.get(build), out=out)

    def resume(self, build: str, now: int) -> CommandResult:
        """Have a build go on; nothing happens to one that does not pause.

        Raises:
            NoSuchBuildError: there is none.
            ConflictError: it reads nothing any more.
        """
        record = self._reading(build, "resume")
        if not record.paused:
            return self._done(now, f"build {build} does not pause", build=record)
        if record.state == "CATCHUP":
            record = replace(record, paused="", paused_by="")
            self._builds.registry.put(record)
            told = f"build {build} goes on: its verification begins again"
            return self._done(now, told, build=record, out=[Note("info", "build-resumed", build, told)])
        out = self._builds.pausing.resume(record, now)
        record = self._builds.registry.get(build)
        told = f"build {build} still pauses: {record.paused}" if record.paused else f"build {build} goes on"
        return self._done(now, told, build=record, out=out)

    def throttle(self, build: str, rate_limit: int, now: int) -> CommandResult:
        """Change how many documents a build may read per second (0: no limit).

        Raises:
            NoSuchBuildError: there is none.
            ConflictError: it reads nothing any more.
        """
        record = replace(self._reading(build, "throttle"), rate_limit=rate_limit)
        self._builds.registry.put(record)
        self._builds.registry.run(build).pace.forget()
        limit = f"at most {rate_limit:,} documents/s" if rate_limit else "as fast as it can"
        text = f"build {build} reads {limit} from now on"
        return self._done(now, text, build=record, out=[Note("info", "build-throttled", build, text)])

    def start_job(self, kind: JobKind, name: str, now: int, *, dry_run: bool = False) -> CommandResult:
        """Queue a verification or repair of an index."""
        index = self._dictionary.index_named(name)
        job = self._builds.jobs.request(kind, [index], now, dry_run=dry_run)
        return self._done(now, f"{kind} {job.id} of {name} is queued", job=job.id)

    def cancel_job(self, id_: str, now: int) -> CommandResult:
        """Cancel a job; a drain, by `undrain`.

        Raises:
            NoSuchJobError: there is none.
            ConflictError: it is over, or is a copy.
        """
        if id_.startswith(DRAIN):
            return self.undrain(drain_of(self._dictionary, id_).id, now)
        if f"rebalance/{id_}" in self._dictionary.catalog.records:
            _, out = self._moves.cancel(id_, now)
            return self._done(now, f"rebalance {id_} is cancelled", job=id_, out=out)
        job = self._builds.jobs.get(id_)
        out = self._builds.jobs.cancel(job, "on request", now)
        return self._done(now, f"{job.kind} {id_} is cancelled", job=id_, out=out)

    def throttle_job(self, id_: str, copy_rate: int, now: int) -> CommandResult:
        """Change how fast the copies of a job are filled. Raises as `set_rate`."""
        note = set_rate(self._builds, self._moves, id_, copy_rate)
        return self._done(now, note.text, job=id_, out=[note])

    def drain(self, node: str, now: int) -> CommandResult:
        """Have all copies on a node move to others. Raises as `Moves.drain`."""
        _, out = self._moves.drain(node, now)
        return self._done(now, f"node {node} is being drained", job=DRAIN + node, out=out)

    def undrain(self, node: str, now: int) -> CommandResult:
        """Let a node have slices again. Raises as `Moves.undrain`."""
        _, out = self._moves.undrain(node)
        return self._done(now, f"node {node} may have slices again", job=DRAIN + node, out=out)

    def upgrade(self, now: int) -> CommandResult:
        """Use the newest version of the protocol that this release speaks.

        Raises:
            UpgradeNeededError: somebody does not speak it.
        """
        used = self._dictionary.catalog.protocol
        self._dictionary.use_protocol(SPOKEN, "the newest version")
        if used >= SPOKEN:
            return self._done(now, f"version {used} of the protocol is in use already, nothing is done")
        text = f"version {SPOKEN} of the protocol is in use, it was {used}; there is no way back"
        note = Note("info", "protocol-used", self._dictionary.topics.cluster, text)
        return self._done(now, text, out=[note])

    def rebalance(self, moves: list[Move], now: int) -> CommandResult:
        """Carry out what was planned (`Moves.sketch`). Raises as `Moves.carry_out`."""
        record, out = self._moves.carry_out(moves, now)
        return self._done(now, f"rebalance {record.id} begins", job=record.id, out=out)

    def _reading(self, build: str, what: str) -> BuildRecord:
        """The record of a build that reads, or will: documents, or, while it verifies, the source again."""
        record = self._builds.registry.get(build)
        if record.state in FINAL:
            raise ConflictError(
                f"build {build} is over, it is {record.state}",
                problem_type="build-over",
                next_step=f"there is nothing to {what}; `keytide build list` shows what is under way",
            )
        if record.state == "CATCHUP" and not self._verifies(record):
            raise ConflictError(
                f"build {build} reads nothing now; its slices load, or catch up with the stream",
                problem_type="build-has-read",
                next_step=f"there is nothing to {what} before it verifies (phase verifying); wait for that "
                "or for READY, or cancel it",
            )
        return record

    def _verifies(self, record: BuildRecord) -> bool:
        job = self._builds.jobs.find(record.verification) if record.phase == "verifying" else None
        return job is not None and job.state not in JOB_FINAL
