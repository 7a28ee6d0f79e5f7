"""The routes of jobs: verification and repair of indexes, their progress, their reports; and work on copies
of slices, which is listed with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field

from coordinator.http import job_reports
from coordinator.http.leader_access import LeaderAccess
from coordinator.leader import Leader
from coordinator.statements.copy_rates import LEAST, MOST
from coordinator.views import jobs as job_views


class RepairBody(BaseModel):
    """How to repair."""

    model_config = ConfigDict(extra="forbid")
    dry_run: bool = False


class CopyRateBody(BaseModel):
    """How fast the copies of a job are filled."""

    model_config = ConfigDict(extra="forbid")
    copy_rate: int | None = Field(
        description=f"bytes per second of each copy at most, from {LEAST:,} to {MOST:,}; 0 or null: as the "
        "setting indexer.copy_rate of the node that is filled says"
    )


def add_jobs(app: FastAPI, access: LeaderAccess, page_headers: dict[str, str]) -> None:
    """Add the routes.

    Args:
        page_headers: of pages for people.
    """

    @app.post(
        "/v1/indexes/{name}/verify",
        tags=["jobs"],
        status_code=202,
        summary="Compare an index with its source",
    )
    async def verify(name: str) -> Any:
        """In both directions, at one snapshot; writes and scans go on. Answers with the job."""
        outcome = await access.change(lambda commands, now: commands.start_job("verify", name, now))
        return await access.look(_shown(outcome.job))

    @app.post(
        "/v1/indexes/{name}/repair",
        tags=["jobs"],
        status_code=202,
        summary="Put right what differs from the source",
    )
    async def repair(name: str, body: RepairBody | None = None) -> Any:
        """Differences that are found twice are corrected; what changes meanwhile is left alone, and writes
        and scans go on. With `dry_run` nothing is written: the report says what would be done. Answers with
        the job."""
        dry_run = body.dry_run if body is not None else False
        outcome = await access.change(
            lambda commands, now: commands.start_job("repair", name, now, dry_run=dry_run)
        )
        return await access.look(_shown(outcome.job))

    @app.get("/v1/jobs", tags=["jobs"], summary="All jobs, oldest first")
    async def jobs() -> Any:
        """Verifications and repairs; copies of slices that are being filled (kind `copy`; `copy` says which,
        where, from where, and for what), until they count; drains of nodes (kind `drain`, id `drain-NODE`),
        until their nodes may have slices again; and rebalances (kind `rebalance`)."""
        return await access.look(job_views.jobs)

    @app.get("/v1/jobs/{job}", tags=["jobs"], summary="One job")
    async def show(job: str) -> Any:
        return await access.look(_shown(job))

    @app.patch("/v1/jobs/{job}", tags=["jobs"], summary="Change how fast copies are filled")
    async def throttle(job: str, body: CopyRateBody) -> Any:
        """Of a job of kind `copy`, `rebalance` or `drain`: its copies that are under way, within about a
        second, and those that begin later. A copy goes on with what it has."""
        await access.change(lambda commands, now: commands.throttle_job(job, body.copy_rate or 0, now))
        return await access.look(_shown(job))

    @app.post("/v1/jobs/{job}/cancel", tags=["jobs"], summary="Cancel a job")
    async def cancel(job: str) -> Any:
        """A build that waits for it fails: it is not verified. What a rebalance has moved stays where it is;
        to cancel a drain is to undrain its node. A copy cannot be cancelled: it is there because its index is
        to have so many (ALTER INDEX), or because of a rebalance or a drain."""
        await access.change(lambda commands, now: commands.cancel_job(job, now))
        return await access.look(_shown(job))

    @app.get(
        "/v1/jobs/{job}/report",
        tags=["jobs"],
        summary="What a job found",
        response_model=None,
    )
    async def report(
        job: str,
        offset: Annotated[int, Query(ge=0, description="leave out so many differences")] = 0,
        limit: Annotated[
            int, Query(ge=1, le=job_reports.MAX_LINES, description="differences at most")
        ] = 1_000,
        format: Annotated[Literal["json", "html"], Query(description="html: a page for people")] = "json",
    ) -> Response | dict[str, Any]:
        """Its differences come in pages; `next` is the offset of the next one. All of them are in
        `differences.ndjson` in the job's folder."""
        record = await access.look(lambda leader, _: leader.jobs.get(job))
        data_dir = access.service.settings.data_dir
        found = await asyncio.to_thread(job_reports.read, data_dir, record, offset, limit)
        if format == "html":
            return HTMLResponse(job_reports.page(found), headers=page_headers)
        return found


def _shown(job: str) -> Callable[[Leader, int], job_views.Document]:
    return lambda leader, now: job_views.by_id(leader, job, now)
