"""Chance and plans: one seed makes a plan, a list of steps, and the plan makes the history.

Theory of operation: every step carries its own 64 bits of chance. Whatever is decided while a step happens
is drawn from those, so a step that is taken out of a plan does not change what the others do (as far as the
world lets them): that is what makes shrinking work (`shrink`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from keytide.model.protocol import CHANGES, SPOKEN

_MASK = (1 << 64) - 1
_T = TypeVar("_T")

ACTIONS: dict[str, int] = {
    "write": 36,
    "poll": 34,
    "tick": 14,
    "node": 70,
    "lead": 34,
    "driver": 14,
    "scan": 20,
    "build": 2,
}
"""What goes on in a cluster, with weights."""
STRIKES: dict[str, int] = {
    "node-crash": 3,
    "projector-crash": 3,
    "driver-crash": 2,
    "rebalance": 5,
    "new-leader": 3,
    "compaction": 10,
    "election": 2,
    "drop": 1,
    "silence": 2,
    "late-control": 3,
    "queue-away": 2,
}
"""Faults that are steps of their own, with weights."""
LOSSES: dict[str, int] = {"disk-loss": 1, "damage": 1, "truncate": 3, "recreate": 1}
"""Faults that lose what was thought to be safe, with weights."""
WEATHER: tuple[str, ...] = (
    "lost",
    "duplicate",
    "slow",
    "parts",
    "lost-report",
    "late-report",
    "late-broadcast",
    "speculative",
    "disk-full",
    "prefetch",
    "out-of-range",
    "late-answers",
)
"""Faults that strike whatever goes on."""
BROKERS_LOST = "brokers-lost"
"""A client of a projector is without brokers for good, now and then, where a plan says so."""
RETENTION = "retention"
"""The source keeps records for a time only: its oldest go while drivers are at work (`retaining`)."""
BESIDE_RETENTION: frozenset[str] = frozenset(
    (*LOSSES, "compaction", "expire", "spoil", "repair", "move", "layout")
)
"""What does not go with it here: a slice that is built again then has less than it had, and other checkers
take its documents for lost."""
FAULTS: tuple[str, ...] = (*STRIKES, *LOSSES, *WEATHER)
MISHAPS: tuple[str, ...] = ("killed", "clock-jump", "full-anywhere")
"""Faults amid what a process does (`mishaps`); the first two are steps."""
EVERY: tuple[str, ...] = (*FAULTS, *MISHAPS)
MISHAPS_OF, MISHAPS_EACH = (4, 5), 9
"""They strike in these of so many plans."""
KILLED_SHARE, JUMP_SHARE = 0.08, 0.4
"""How many steps are followed by one of a mishap, and how many of those are jumps, where both may strike."""
REPAIRS_EACH = 8
"""Repairs are at work in one of so many plans."""
REPAIR_SHARE, SPOIL_SHARE = 0.25, 0.15
"""How many steps are followed by one of a repair, and how many of those spoil something."""
STEERING_EACH = 8
"""Builds are paused and resumed in one of so many plans."""
STEERING_SHARE, BUILD_SHARE = 0.15, 0.1
"""How many steps are followed by one that steers a build, and how many of those begin one."""
ALTERED = "altered"
"""The fault that stands for indexes that are altered (`altering`)."""
ALTER_SHARE = 0.2
"""How many steps are followed by one that alters an index, or by one of what it takes to do so in time."""
MOVES_EACH, MOVES_OF = 16, (8, 11)
"""Copies move in these of so many plans, with and without others of the same slice."""
MOVE_SHARE, MOVED_SHARE = 0.3, 0.35
"""How many steps are followed by one more scan, and how many of those move something instead."""
LAYOUTS_EACH, LAYOUTS_OF = 16, (1, 3)
"""Indexes are made anew while they serve in these of so many plans, without and with copies of slices."""
LAYOUT_SHARE, LAID_OUT_SHARE = 0.3, 0.15
"""How many steps are followed by one more scan, and how many of those make an index anew instead."""
EXPIRY_EACH, EXPIRY_SHARE = 16, 0.02
"""In one of so many plans everything stops, for longer than Kafka keeps topics: after this share of the
steps."""
STEPS = 240
FEW = 3
"""Where so few faults may strike they strike often."""
REGULAR = 40
"""Longest time between two steps, ms."""
CALM_MS = (100, 150, 100, 25, 100, 150, 100, 150)
"""How far apart rounds are when everything drains, by seed in turn. What the cluster waits for is mostly due
after 60 to 150 ms, so that longer rounds are fewer; one plan in eight has short ones, between which timers
and messages interleave as in the storm. (Plans that were kept by hand have those.)"""

Step = tuple[str, int]
"""(action, its chance)."""


class Chance:
    """A small source of numbers (a linear congruential one: a seeding of `random.Random` costs as much as a
    whole step)."""

    __slots__ = ("_state",)

    def __init__(self, seed: int = 0) -> None:
        self.begin(seed)

    def begin(self, seed: int) -> None:
        """Go on from here."""
        self._state = (seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK

    def below(self, limit: int) -> int:
        """0 to `limit` - 1."""
        self._state = state = (self._state * 6364136223846793005 + 1442695040888963407) & _MASK
        return ((state >> 33) * limit) >> 31

    def happens(self, share: float) -> bool:
        return self.below(1 << 20) < share * (1 << 20)

    def pick(self, items: Sequence[_T]) -> _T:
        return items[self.below(len(items))]


class Plan(NamedTuple):
    """A history before it happens.

    Attributes:
        faults: those that may strike.
        real_pipeline: projectors use the real projection, routing and packing.
        replicas: index `a` has a second copy of each slice.
        layouts: indexes are made anew while they serve, and read while they get new layouts in the end.
        seeds: new layouts begin with the slices of the old ones.
        moves: there is a third node; copies move, nodes are drained.
        restart_at_end: after the heal all nodes are killed once more.
        tables: some builds begin with a table.
        repairs: slices come to hold what is wrong, and a repair is at work.
        ranged: indexes are by RANGE; the splits of one of them are found by a sample.
        spread: partitions of indexes are of one slice and of several.
        alters: indexes are altered, and builds paused and resumed, while they wait (`altering`).
        calm_ms: time between rounds in which everybody does all that there is to do.
    """

    seed: int
    faults: frozenset[str]
    steps: tuple[Step, ...]
    real_pipeline: bool = False
    replicas: bool = False
    layouts: bool = False
    seeds: bool = False
    moves: bool = False
    restart_at_end: bool = False
    tables: bool = False
    repairs: bool = False
    ranged: bool = False
    calm_ms: int = 25
    spread: bool = False
    alters: bool = False

    @property
    def paced(self) -> bool:
        """Drivers of builds are struck in the heal too, after a while each: they must get on all the same."""
        return self.seed % 3 == 0

    def leader_protocol(self, term: int) -> int:
        """Up to which version of the protocol a leader speaks: nodes say what has changed in every second
        sixteen of plans, but not to every fourth leader, who is of the release before."""
        return SPOKEN if self.seed // 16 % 2 and term % 4 else CHANGES - 1


def plan(seed: int, faults: Sequence[str] | None = None) -> Plan:
    """The plan of a seed.

    Args:
        faults: those that may strike; None for a random subset.
    """
    chance, wanted = random.Random(seed), faults
    if faults is None:
        share = chance.choice((0.3, 0.6, 0.9))
        faults = [one for one in FAULTS if chance.random() < share]
    faults = [one for one in faults if one not in MISHAPS]
    # A rollback reads again what the cleaner may have thinned out meanwhile; the cleaner's lag, which keeps
    # it from that, is a time, and too long for this world.
    losses = {"truncate", "recreate"}
    without = losses if "compaction" in faults and chance.random() < 0.4 else {"compaction"}
    if losses & set(faults):
        faults = [one for one in faults if one not in without]
    strikes = {name: weight for name, weight in (*STRIKES.items(), *LOSSES.items()) if name in faults}
    if len(faults) <= FEW:
        strikes = {name: 4 * weight for name, weight in strikes.items()}
    weights = {**ACTIONS, **strikes}
    steps = chance.choices(list(weights), list(weights.values()), k=chance.randint(STEPS // 2, STEPS))
    found = [(step, chance.getrandbits(63)) for step in steps]
    repairs = seed % REPAIRS_EACH == REPAIRS_EACH - 2
    steers = seed % STEERING_EACH == STEERING_EACH - 4
    if repairs:
        found = _with(seed, found, "repair", REPAIR_SHARE, "spoil", SPOIL_SHARE)
    elif steers:
        found = _with(seed, found, "steer", STEERING_SHARE, "build", BUILD_SHARE)
    elif seed % MOVES_EACH in MOVES_OF:
        found = _with(seed, found, "scan", MOVE_SHARE, "move", MOVED_SHARE)
    elif seed % LAYOUTS_EACH in LAYOUTS_OF:
        found = _with(seed, found, "scan", LAYOUT_SHARE, "layout", LAID_OUT_SHARE)
    elif seed % EXPIRY_EACH == EXPIRY_EACH - 7:
        found = _with(seed, found, "expire", EXPIRY_SHARE, "expire", 0)
    mishaps = _mishaps(seed) if wanted is None else [one for one in MISHAPS if one in wanted]
    if kinds := [one for one in mishaps if one != "full-anywhere"]:
        share = JUMP_SHARE if len(kinds) > 1 else 0.0
        found = _with(seed ^ _MASK >> 1, found, kinds[0], KILLED_SHARE, kinds[-1], share)
    return Plan(
        seed,
        frozenset((*faults, *mishaps)),
        tuple(found),
        real_pipeline=seed % 8 == 5 or seed % 16 == 15,
        replicas=seed % 8 == 3,
        layouts=seed % LAYOUTS_EACH in LAYOUTS_OF,
        seeds=seed // LAYOUTS_EACH % 2 == 0,
        moves=seed % MOVES_EACH in MOVES_OF,
        tables=seed % 8 == 2,
        restart_at_end=seed % 4 == 1 or repairs,
        repairs=repairs,
        ranged=seed % 8 == 7,
        calm_ms=CALM_MS[seed // 8 % len(CALM_MS)],
    )


def retaining(one: Plan) -> Plan:
    """A plan in which the source keeps records for a time only (R29)."""
    return one._replace(
        faults=one.faults - BESIDE_RETENTION | {RETENTION},
        steps=tuple(step for step in one.steps if step[0] not in BESIDE_RETENTION),
        layouts=False,
        moves=False,
        tables=False,
        repairs=False,
    )


def altering(one: Plan) -> Plan:
    """A plan in which indexes get other slices, most of them while their builds wait. (Repairs look at one
    layout of an index only.)"""
    steps = [step for step in one.steps if step[0] not in ("spoil", "repair")]
    return one._replace(
        steps=tuple(_with(one.seed ^ _MASK >> 3, steps, "alter", ALTER_SHARE, "build", BUILD_SHARE)),
        layouts=True,
        alters=True,
        repairs=False,
        ranged=one.seed % 3 != 0,
        spread=one.seed % 4 > 1,
    )


def _mishaps(seed: int) -> list[str]:
    """Those of a seed, by a chance of their own."""
    if seed % MISHAPS_EACH not in MISHAPS_OF:
        return []
    chance = random.Random(seed ^ _MASK >> 2)
    return [one for one in MISHAPS if chance.random() < 0.7]


def _with(seed: int, steps: list[Step], often: str, share: float, rare: str, rarely: float) -> list[Step]:
    """The steps with others between them, from a chance of their own: so they stay as they are.

    Args:
        often, share: what follows this share of the steps;
        rare, rarely: but for this share of them, where it is something else.
    """
    chance = random.Random(~seed)
    found: list[Step] = []
    for step in steps:
        found.append(step)
        if chance.random() < share:
            found.append((rare if chance.random() < rarely else often, chance.getrandbits(63)))
    return found
