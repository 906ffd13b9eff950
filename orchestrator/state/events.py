"""Validation of the lines of an event log as they are read, since a driver acts on them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrator.spec.outcome import Outcome
from tinyattn.files.outside import UnfitError, decode, parse_json

_Trial = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$")]  # names folders
_Index = Annotated[int, Field(ge=0, le=10**9)]
_Ending = Annotated[str, AfterValidator(lambda word: Outcome(word).value)]


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=True)  # a trial that diverged has NaN


class _Numbers(_Checked):
    """The numbers of a worker's report that decisions depend on; other values are only shown."""

    evaluation: _Index
    score: float
    best_score: float
    best_index: _Index = 0
    total: _Index = 0
    noise: float = 0.0
    seconds: float = 0.0
    rows_per_second: float = 0.0
    train_loss: float = 0.0
    adapter_params: _Index = 0
    classifier_params: _Index = 0
    metrics: dict[str, float] | None = None
    heldout: dict[str, float] | None = None
    outcome: _Ending | None = None
    error: str | None = None


class _Start(_Checked):
    event: Literal["start"]
    trial: _Trial
    params: dict[str, Any]


class _Result(_Checked):
    event: Literal["result"]
    trial: _Trial
    result: _Numbers


class _End(_Checked):
    event: Literal["end"]
    trial: _Trial
    outcome: _Ending
    error: str | None = None


_EVENT: TypeAdapter[Any] = TypeAdapter(
    Annotated[_Start | _Result | _End, Field(discriminator="event")]
)


def parse_event(line: bytes) -> dict[str, Any]:
    """Return the event of a line.

    Raises:
        UnfitError: the line is not an event; the message says why.
    """
    event: dict[str, Any] = parse_json(decode(line), nan=True)
    try:
        _EVENT.validate_python(event)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"][1:])
        raise UnfitError(f"{place or 'the line'}: {fault['msg']}"[:300]) from None
    return event
