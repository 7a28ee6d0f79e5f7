"""The embedded Kafka: one broker, or several that are one Kafka cluster.

Theory of operation: each broker is a JVM with a folder and a port of its own, and controller, too: most of
them must run for any to answer. One alone has the folder `kafka`; several have `kafka/broker-1`,
`kafka/broker-2`, ... in it. How many there are says the folder: replicas of topics lie on these, and none is
added or taken away. The last one is formatted first, so that a first start that is interrupted leaves no
smaller cluster.

Ports of clients stay the same through restarts of everything, those of controllers through restarts of single
brokers: nobody else uses them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

from deploy.kafka import BrokerPlace, EmbeddedKafka
from deploy.process import free_ports, keep_back

_NAME: Final = "broker-"


def brokers_in(folder: Path) -> int:
    """How many brokers have their data in a folder; 0 when there are none."""
    if not folder.is_dir():
        return 0
    numbers = [one.name.removeprefix(_NAME) for one in folder.glob(f"{_NAME}*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=1)


class KafkaBrokers:
    """All brokers of the embedded Kafka.

    Args:
        folder: of their data, kept.
        count: how many there are, from 1.
    """

    def __init__(self, folder: Path, count: int = 1) -> None:
        self.all = (
            [EmbeddedKafka(folder)]
            if count == 1
            else [EmbeddedKafka(folder / f"{_NAME}{n}", name=f"{_NAME}{n}") for n in range(1, count + 1)]
        )

    @property
    def bootstrap(self) -> str:
        """What goes into `bootstrap.servers`: all of them, for any may be away."""
        return ",".join(broker.bootstrap for broker in self.all)

    def start(self) -> Self:
        """Start all and wait until each answers. Raises as `EmbeddedKafka.start`."""
        keep_back(broker.last_port for broker in self.all)
        if len(self.all) > 1:
            controllers = dict(enumerate(free_ports(len(self.all)), 1))
            cluster_id = self.all[-1].cluster_id
            for number, broker in enumerate(self.all, 1):
                broker.place = BrokerPlace(number, controllers, cluster_id)
        for broker in reversed(self.all):
            broker.launch()
        for broker in self.all:
            broker.wait_ready()
        return self

    def stop(self) -> None:
        """Stop all in order, at once."""
        for broker in self.all:
            broker.ask_to_end()
        for broker in self.all:
            broker.stop()
