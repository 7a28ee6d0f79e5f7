"""A builder: creates indexes, builds them under writes, cancels, drops, and uses their names again."""

from __future__ import annotations

import random
import time
from typing import Any

from keytide.errors import CallerError, KeytideError
from tests.chaos.patience import OVER
from tests.chaos.run import Run, Target
from tests.chaos.shapes import SHAPES, Shape

STILL_S = 300.0
BUILD_LIMIT_S = 1_800.0
DIED = "the Spark driver died"
"""A build that fails with these words was killed too often: that is what was done to it."""


class Builder:
    """Works on the indexes of its own names in one keyspace until the run is over."""

    def __init__(self, run: Run, keyspace: str, seed: int) -> None:
        self._run = run
        self._keyspace = keyspace
        self._chance = random.Random(seed)

    def work(self) -> None:
        """The thread."""
        while True:
            self.once()
            self._run.pause(self._chance.uniform(0.5, 4))

    def once(self) -> None:
        """One or two indexes from CREATE to DROP."""
        chance, run = self._chance, self._run
        shapes = chance.sample(list(SHAPES.values()), chance.choice((1, 1, 2)))
        targets = [self.create(f"{self._keyspace}_churn{at}", shape) for at, shape in enumerate(shapes)]
        names = [target.name for target in targets]
        build = run.build(names)
        run.note(f"build {build} of {', '.join(f'{t.name} ({t.shape.name})' for t in targets)}")
        end = chance.choices(("ready", "cancel", "drop"), (6, 2, 1))[0]
        if end == "cancel":
            run.pause(chance.uniform(0, 15))
            self._cancel(build)
            build = run.build(names) if self._all_deferred(names) else build
        elif end == "drop":
            run.pause(chance.uniform(0, 15))
        if end != "drop" and self.wait(build):
            run.count(builds_ready=1)
            for target in targets:
                run.offer(target)
            run.pause(chance.uniform(2, 15))
        for target in targets:
            run.withdraw(target)
            self.drop(target.name)
            run.count(drops=1)

    def create(self, name: str, shape: Shape, slices: int = 0) -> Target:
        """CREATE INDEX, deferred; with some number of slices if none is given."""
        copies = self._chance.choice((0, 0, 1))
        options = f"replicas={copies}"
        if not shape.slices:
            options += f", slices={slices or self._chance.choice((1, 2, 4))}"
        options += ", defer_build=true"
        statement = f"CREATE INDEX {name} ON {self._keyspace} {shape.clauses.format(options=options)}"
        try:
            self._run.admin("POST", "/v1/statements", {"statement": statement})
        except KeytideError as error:
            if error.problem_type != "index-exists":  # the answer to an earlier try was lost
                raise
        return Target(name, self._keyspace, shape)

    def wait(self, build: str) -> bool:
        """Wait until a build is over; whether it is READY."""
        patience, began = self._run.patience(STILL_S, BUILD_LIMIT_S), time.monotonic()
        while True:
            state = self._run.build_state(build)
            if state["batches"]:
                self._run.could(time.monotonic() - began)
                began = time.monotonic()
            if state["state"] == "READY":
                return True
            if state["state"] in OVER:
                again = self._again(state)
                if again:
                    build = again
                    continue
                if state["state"] == "FAILED" and DIED not in (state["error"] or ""):
                    self._run.fail(f"build {build} failed: {state['error']}")
                self._run.count(builds_given_up=1)
                return False
            self._run.pause(0.3)
            if patience.over:
                limits = f"no build got on in {STILL_S:.0f} s without faults, or it took more than "
                limits += f"{BUILD_LIMIT_S:.0f} s"
                self._run.fail(f"build {build} is not over: {limits}", [str(state)])

    def _again(self, state: dict[str, Any]) -> str:
        """The build in place of one that ended because its keyspace was rolled back; "" for none."""
        if not self._run.rolled_back or not state["indexes"]:
            return ""
        newest = str(self._run.admin("GET", f"/v1/indexes/{state['indexes'][0]}")["build"] or "")
        return newest if newest != state["id"] else ""

    def _cancel(self, build: str) -> None:
        try:
            self._run.admin("POST", f"/v1/builds/{build}/cancel")
            self._run.note(f"build {build} cancelled")
            self._run.count(cancels=1)
        except CallerError as error:
            if error.problem_type != "build-over":
                raise

    def _all_deferred(self, names: list[str]) -> bool:
        return all(self._run.admin("GET", f"/v1/indexes/{name}")["state"] == "DEFERRED" for name in names)

    def drop(self, name: str) -> None:
        """DROP INDEX; the name is free when it returns."""
        self._run.admin("POST", "/v1/statements", {"statement": f"DROP INDEX IF EXISTS {name}"})
        self._run.note(f"{name} dropped")
