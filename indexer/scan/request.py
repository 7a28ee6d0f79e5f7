"""What a reader may ask of the scan endpoint, and what it answers (CONTRACT §5)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _json_only(value: Any) -> Any:
    """Key parts are JSON values as they are: no coercion."""
    return value


KeyPart = Annotated[Any, BeforeValidator(_json_only)]
Inclusion = Literal["both", "low", "high", "neither"]
Consistency = Literal["stable", "tip"]


class Selection(BaseModel):
    """Which entries: at most one of `equals`, `low`/`high`, `prefix`; nothing selects the whole index."""

    model_config = ConfigDict(extra="forbid")

    equals: list[KeyPart] | None = Field(
        None, description="leading key parts that must be equal", examples=[["Boston"]]
    )
    low: list[KeyPart] | None = Field(None, description="lower bound: leading key parts")
    high: list[KeyPart] | None = Field(None, description="upper bound: leading key parts")
    inclusion: Inclusion = Field("both", description="which of the bounds belong to the range")
    prefix: str | None = Field(
        None, description="strings that begin so, in the key part after `equals` (the first part without it)"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Selection:
        if self.equals is not None and (self.low is not None or self.high is not None):
            raise ValueError("give either `equals` or `low`/`high`, not both")
        if self.prefix is not None and (self.low is not None or self.high is not None):
            raise ValueError("give either `prefix` or `low`/`high`, not both")
        return self


class Demands(BaseModel):
    """From which moment in time the answer must come."""

    model_config = ConfigDict(extra="forbid")

    consistency: Consistency = Field(
        "stable", description="`stable`: one agreed snapshot of all slices; `tip`: each slice's newest state"
    )
    at_least: dict[int, int | dict[str, int]] | None = Field(
        None,
        description="source partition -> next offset (record offset + 1) that the snapshot must include; "
        'or {"offset": n, "epoch": e}',
        examples=[{"0": 4711}],
    )
    session: str | None = Field(
        None, description="token of an earlier answer: never see an older snapshot than that one"
    )
    max_staleness_ms: int | None = Field(None, ge=0, description="how old the snapshot may be at most")
    timeout_ms: int | None = Field(None, ge=1, description="longest wait for such a snapshot")


class ScanRequest(Selection, Demands):
    """Body of `POST /v1/indexes/{name}/scan`."""

    reverse: bool = Field(False, description="rows in descending key order")
    limit: int | None = Field(None, ge=1, description="rows per page")
    columns: list[Literal["key", "id", "include"]] | None = Field(None, description="what each row holds")
    page: str | None = Field(
        None, description="token of an earlier answer: its next page; all else is taken from the token"
    )
    explain: bool = Field(False, description="add how the snapshot was chosen")


class CountRequest(Selection, Demands):
    """Body of `POST /v1/indexes/{name}/count`."""

    explain: bool = False
