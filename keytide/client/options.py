"""The types of the clients' keyword arguments, for those who wrap them (docs/clients.md). They live in
`keytide.client.protocol.options`, under names of their own; these are the ones that stay."""

from keytide.client.protocol.options import AggregateOptions as AggregateOptions
from keytide.client.protocol.options import CountOptions as CountOptions
from keytide.client.protocol.options import MomentOptions as Moment
from keytide.client.protocol.options import PageOptions as PageOptions
from keytide.client.protocol.options import ProducedOffsets as Acknowledged
from keytide.client.protocol.options import QuestionOptions as Question
from keytide.client.protocol.options import ScanOptions as ScanOptions
from keytide.client.protocol.options import SnapshotHandle as HeldSnapshot
from keytide.client.protocol.options import SpanOptions as Span
from keytide.client.protocol.options import TailOptions as TailOptions

__all__ = [
    "Acknowledged",
    "AggregateOptions",
    "CountOptions",
    "HeldSnapshot",
    "Moment",
    "PageOptions",
    "Question",
    "ScanOptions",
    "Span",
    "TailOptions",
]
