"""Settings of verifications and repairs. (`keytide.settings.settings` has the others, and how they are
read.)"""

from __future__ import annotations

from pydantic import Field

from keytide.settings.scans import Section


class VerifySettings(Section):
    concurrent: int = Field(
        1, ge=1, description="verifications and repairs at once: each reads a source as fast as it can"
    )
    interval_s: int = Field(
        0,
        ge=0,
        description="how old the last verification of an index may get before it is verified again by "
        "itself, the oldest first; 0 for never",
    )
    restarts: int = Field(
        10,
        ge=0,
        description="how often the dead driver of a job is started again, after pauses of up to half a "
        "minute, before the job fails, and the build that waits for it",
    )
    kept: int = Field(50, ge=1, description="jobs that are over whose reports are kept")
    waiting: int = Field(
        100, ge=1, description="jobs that may be queued or under way: more is a mistake of whoever asks"
    )
    max_differences: int = Field(
        10_000,
        ge=1,
        description="differences that one report lists; an index that is wrong everywhere is better built "
        "anew",
    )
    local_documents: int = Field(
        200_000,
        ge=0,
        description="a source with no more records is read by the driver itself: Spark would take longer to "
        "start",
    )


class RepairSettings(Section):
    grace_s: float = Field(
        10.0,
        ge=0,
        description="a difference is corrected only when it is found again at a second snapshot, at least "
        "this long after the first look",
    )
    documents: int = Field(
        100_000,
        ge=1,
        description="documents that one round corrects: slices keep their ids in memory meanwhile; an index "
        "that is wrong everywhere is better built anew",
    )
    rounds: int = Field(
        4, ge=1, description="how often what is still wrong, or was changed meanwhile, is looked at again"
    )
    wait_s: float = Field(
        120.0,
        gt=0,
        description="how long a repair waits for slices: for an answer, and until a fold has made durable "
        "what they did",
    )
