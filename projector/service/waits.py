"""How long a projector waits for what, in seconds."""

from __future__ import annotations

from typing import NamedTuple

from keytide.kafka.broker_watch import LOST_S


class Waits(NamedTuple):
    """A projector's waits.

    Attributes:
        hold: after this long without reading, the source is served without taking records, so that
            rebalances go on.
        seek_limit: for the source to go to where it was told to.
        first_backoff, longest_backoff: after a reset; doubled until something is delivered.
        revoke: how long a rebalance waits for what is in flight; the rest is sent again by the next owner.
        look_up_again: before what was asked of Kafka in vain is asked again.
        brokers_lost: for a client that is without brokers, while Kafka answers another one.
    """

    hold: float = 1.0
    seek_limit: float = 15.0
    first_backoff: float = 0.1
    longest_backoff: float = 5.0
    revoke: float = 3.0
    look_up_again: float = 0.2
    brokers_lost: float = LOST_S
