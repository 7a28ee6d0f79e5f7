"""What a failure of the driver means: whether another start can help, and what to tell the operator. Pure.

Theory of operation: a build must fail loudly and for good when the source no longer has what it needs
(R29), and must go on where it was when something was away for a while. (Open transactions, R24, and
tombstones that may have expired, R26, are the coordinator's to watch.) Keytide's own errors say by their
family which it is. Spark's come as text, often with the Java exception of a task inside; they are
told apart by what is in that text. Whatever is not known is tried again: the number of restarts is limited.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from keytide.errors import CallerError, InvariantViolationError, KeytideError, RetryableError
from streaming.spark.checkpoint import CheckpointError
from streaming.spark.session import JARS_VARIABLE

DETAIL_CHARACTERS = 500
AWAY = (
    "SourceStalledError",
    "DeliveryError",
    "KafkaUnavailableError",
    "KafkaException",
    *("TimeoutException", "DisconnectException", "NetworkException", "UnknownTopicOrPartitionException"),
    *("LeaderNotAvailableException", "NotLeaderOrFollowerException", "CoordinatorNotAvailableException"),
)
"""Names of errors, ours in tasks and those of Kafka's Java client, that pass when Kafka is back."""


class DriverFailure(NamedTuple):
    """Why a driver ends.

    Attributes:
        reason: kebab-case word.
        message: for the operator.
        never: no restart can help; the build has failed.
        away: Kafka is, and the same process may go on when it is back.
    """

    reason: str
    message: str
    never: bool
    away: bool = False


class StoppedError(Exception):
    """The driver was asked to end, or its build is no longer to be backfilled."""


class BuildImpossibleError(CallerError):
    """The source does not allow this build to be completed; it must be dropped or started anew."""

    problem_type = "build-impossible"


_KNOWN: tuple[tuple[str, str, str, bool], ...] = (
    (
        r"PARTITIONS_DELETED|INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS",
        "source-changed",
        "partitions of the source were deleted during the build",
        True,
    ),
    (
        r"ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
        "source-changed",
        "the source got a new partition during the build",
        True,
    ),
    (
        r"PARTITION_OFFSET_CHANGED",
        "source-changed",
        "the source's end went back: records that were acknowledged are gone, or the topic was made anew",
        True,
    ),
    (
        r"OffsetsLostError|KAFKA_DATA_LOSS|OffsetOutOfRange|Cannot fetch offset|Some data may have been lost",
        "offsets-lost",
        "the source deleted records (by retention, or on request) before the build had read them",
        True,
    ),
    (
        r"AccessRefusedError|\w*(?:Authorization|Authentication)Exception",
        "access-refused",
        "Kafka refuses the driver access to the source",
        True,
    ),
    (
        r"Failed to find data source: kafka|NoClassDefFoundError: org/apache/kafka|DATA_SOURCE_NOT_FOUND",
        "connector-missing",
        f"Spark has no Kafka connector: set {JARS_VARIABLE} to its jars, or let it reach Maven Central",
        True,
    ),
    (
        r"No module named '?(?:streaming|keytide|projector|msgspec|confluent_kafka|pyarrow|numpy|xxhash)\b",
        "workers-without-keytide",
        "the Python of Spark's workers does not have Keytide: set build.worker_python to a Python on the "
        "workers' machines that Keytide is installed in, or build.worker_path to the folders there that its "
        "packages, and what they need, are in; then build again",
        True,
    ),
    (
        r"PYTHON_VERSION_MISMATCH|Python in worker has different version|Cannot run program \"[^\"]*python",
        "workers-without-keytide",
        "the Python of Spark's workers is not there, or of another version than the coordinator's: set "
        "build.worker_python to one of the same version on the workers' machines, and build again",
        True,
    ),
    (
        r"OutOfMemoryError|Java heap space",
        "out-of-memory",
        "Spark ran out of memory: raise build.driver_memory, or lower build.batch_documents",
        False,
    ),
    (
        rf"\b(?:{'|'.join(AWAY)})\b",
        "kafka-away",
        "Kafka does not answer",
        False,
    ),
)


def diagnose(error: BaseException | str) -> DriverFailure:
    """What `error`, Keytide's own or what Spark says of a failed query, means for the build."""
    if isinstance(error, KeytideError):
        never = isinstance(error, CallerError | InvariantViolationError | CheckpointError)
        message = f"{error.message}; {error.next_step}" if error.next_step else error.message
        return DriverFailure(error.problem_type, message, never, away=isinstance(error, RetryableError))
    text = str(error) or type(error).__name__
    if type(error).__name__ in AWAY:  # in this process; in Spark's text its name stands
        return DriverFailure("kafka-away", f"Kafka does not answer ({_detail(text, 0)})", False, away=True)
    for pattern, reason, message, never in _KNOWN:
        if found := re.search(pattern, text):
            told = f"{message} ({_detail(text, found.start())})"
            return DriverFailure(reason, told, never, away=reason == "kafka-away")
    return DriverFailure("driver-failed", _detail(text, 0), False)


def _detail(text: str, position: int) -> str:
    """The part of Spark's text that tells, without the stack traces."""
    start = text.rfind("\n", 0, position) + 1
    lines = (line.strip() for line in text[start : start + 4 * DETAIL_CHARACTERS].splitlines())
    told = [line for line in lines if line and not line.startswith(("at ", "File ", "^", "..."))]
    return " ".join(told)[:DETAIL_CHARACTERS]


def source_changed(
    topic: str, expected: tuple[str, int], found: tuple[str, int] | None
) -> BuildImpossibleError | None:
    """The error when the source is not the topic that the build began with.

    Args:
        expected, found: (topic id, partitions); `found` is None when the topic is gone.
    """
    again = "drop the index and create it again"
    if found is None:
        return BuildImpossibleError(f"topic {topic} is gone", problem_type="source-changed", next_step=again)
    if found[0] != expected[0]:
        what = f"topic {topic} was deleted and made anew (id {found[0]}, it was {expected[0]})"
        return BuildImpossibleError(what, problem_type="source-changed", next_step=again)
    if found[1] != expected[1]:
        what = f"topic {topic} has {found[1]} partitions now, the build began with {expected[1]}"
        return BuildImpossibleError(what, problem_type="source-changed", next_step="build the index again")
    return None
