"""The routes that move copies of slices: drains of nodes, and rebalances."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Response
from pydantic import BaseModel, ConfigDict

from coordinator.http.leader_access import LeaderAccess
from coordinator.views import copies, views
from coordinator.views import jobs as job_views


class RebalanceBody(BaseModel):
    """How to rebalance."""

    model_config = ConfigDict(extra="forbid")
    dry_run: bool = False


def add_moves(app: FastAPI, access: LeaderAccess) -> None:
    """Add the routes."""

    @app.post(
        "/v1/nodes/{node}/drain", tags=["cluster"], status_code=202, summary="Move all slices off a node"
    )
    async def drain(node: str) -> Any:
        """Its copies are filled on other nodes, and go; no more are placed on it, until it is undrained.
        Answers with the job, which is DONE when the node has none: it may be stopped then."""
        outcome = await access.change(lambda commands, now: commands.drain(node, now))
        return await access.look(lambda leader, now: job_views.by_id(leader, outcome.job, now))

    @app.post("/v1/nodes/{node}/undrain", tags=["cluster"], summary="Let a node have slices again")
    async def undrain(node: str) -> Any:
        """What moves off it is given up; what has left it stays away, until a rebalance. Answers with the
        node."""
        await access.change(lambda commands, now: commands.undrain(node, now))
        nodes = await access.look(views.nodes)
        return next(one for one in nodes if one["id"] == node)

    @app.post("/v1/rebalance", tags=["cluster"], status_code=202, summary="Spread slices over the nodes")
    async def rebalance(response: Response, body: RebalanceBody | None = None) -> Any:
        """Copies move until nodes have about as many entries each, a few at a time; scans and writes go on.
        Answers with the job; with `dry_run`, with its moves and 200, and nothing moves."""
        dry_run = body is not None and body.dry_run
        if not dry_run:
            await access.look(lambda leader, _: leader.copies.moves.check_none_runs())
        sketch = await access.look(lambda leader, _: leader.copies.moves.sketch())
        moves = await asyncio.to_thread(sketch.plan)  # (the leader goes on meanwhile)
        if dry_run:
            response.status_code = 200
            return await access.look(lambda leader, _: copies.plan(leader, moves))
        outcome = await access.change(lambda commands, now: commands.rebalance(moves, now))
        return await access.look(lambda leader, now: job_views.by_id(leader, outcome.job, now))
