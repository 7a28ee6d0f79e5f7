"""Slices that move while everything goes on: nodes that are drained, rebalances, more and fewer copies, new
layouts."""

from __future__ import annotations

import random

from tests.chaos.run import Run

ACTIONS = ("drain", "drain", "undrain", "rebalance", "rebalance", "alter", "alter")


def move(run: Run, chance: random.Random) -> str:
    """Order something; what, in words."""
    nodes = run.admin("GET", "/v1/nodes")
    drained = [one["id"] for one in nodes if one["drain"]]
    action = chance.choice(ACTIONS)
    if action == "rebalance":
        job = run.admin("POST", "/v1/rebalance")
        return f"{job['id']} is to move {job['rebalance']['moves_total']} copies"
    if action == "alter":
        targets = run.targets()
        if not targets:
            return ""
        name, replicas = chance.choice(targets).name, chance.choice((0, 1, 1))
        run.admin("POST", "/v1/statements", {"statement": f"ALTER INDEX {name} SET (replicas={replicas})"})
        return f"{name} is to have replicas={replicas}"
    if drained or action == "undrain":  # (of three nodes two stay: builds with two copies need them)
        for node in drained:
            run.admin("POST", f"/v1/nodes/{node}/undrain")
        return f"{', '.join(drained)} may have slices again" if drained else ""
    node = chance.choice([one["id"] for one in nodes])
    run.admin("POST", f"/v1/nodes/{node}/drain")
    return f"{node} is drained"


def lay_out(run: Run, chance: random.Random) -> str:
    """Have an index get another number of slices while it serves; what, in words. Its build goes on for long
    after."""
    targets = [one for one in run.targets() if not one.shape.slices or one.shape.partitions]
    if not targets:
        return ""
    target, slices = chance.choice(targets), chance.choice((1, 2, 3, 4, 6))
    which = ""
    if target.shape.partitions:
        which = f"PARTITION {chance.randrange(target.shape.partitions)} "
    statement = f"ALTER INDEX {target.name} {which}SET (slices={slices})"
    run.admin("POST", "/v1/statements", {"statement": statement})
    return statement


def end(run: Run) -> None:
    """All nodes may have slices again."""
    for one in run.admin("GET", "/v1/nodes"):
        if one["drain"]:
            run.admin("POST", f"/v1/nodes/{one['id']}/undrain")
