"""The forms of requests and answers, from which OpenAPI is made."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "LARGEST",
    "Batch",
    "Budget",
    "Health",
    "Overview",
    "Period",
    "Periods",
    "Problem",
    "Released",
    "StatementContent",
    "explain",
]

LARGEST = 2**40
"""Steps and periods are numbered below this."""
Value = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class Form(BaseModel):
    """A form without other keys than its own, which does not show what it holds."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class Observation(Form):
    """One raw value, or one for every leaf of a hierarchy, of one step."""

    when: Annotated[int, Field(strict=True, ge=0, lt=LARGEST)] | datetime = Field(
        description="The time of the step in ISO 8601, or its number where the stream has no clock."
    )
    value: Value | dict[str, Value] = Field(repr=False)


class Batch(Form):
    """Observations that are taken all or none."""

    observations: list[Observation] = Field(min_length=1)


class Rational(Form):
    """A rational number as what it is and as what people read."""

    exact: str
    decimal: float


class Band(Form):
    """What holds the noise of each step with the chance ``level``; with an estimate, the true value."""

    level: float
    lower: list[float | None] | dict[str, list[float | None]]
    upper: list[float | None] | dict[str, list[float | None]]


class Period(Form):
    """A released period."""

    period: int
    start: int | datetime
    values: list[float] | dict[str, list[float]]
    band: Band
    epsilon: Rational


class StepBand(Form):
    """Where the true value of a step should be; null where nothing is known yet."""

    level: float
    lower: float | dict[str, float | None] | None
    upper: float | dict[str, float | None] | None


class Step(Form):
    """A step that has left."""

    step: int
    time: int | datetime
    value: float | dict[str, float]
    band: StepBand
    epsilon: Rational


class Released(Form):
    """The periods that observations complete, or that were complete before; or the steps, where they leave by one."""

    released: list[Period | Step]


class Periods(Form):
    """Released periods in order, and where to go on."""

    periods: list[Period]
    next: int | None


class Steps(Form):
    """Steps that have left, in order, and where to go on."""

    steps: list[Step]
    next: int | None


class Policy(Form):
    """What every window is held to."""

    epsilon: Rational
    delta: Rational
    w: int
    alpha: float
    neighbours: str
    entities: str
    entity: str


class LastPeriod(Form):
    """What is left in the worst window that meets the last period."""

    period: int
    left: Rational


class Windows(Form):
    """What the worst window that meets some periods costs."""

    first: int
    last: int
    spent: Rational
    left: Rational


class Shared(Form):
    """What all members of the stream's pool are held to together, and what the windows of its last period leave."""

    name: str
    epsilon: Rational
    w: int
    left: Rational


class Budget(Form):
    """The policy, what is left in the worst of all windows, and in those of the last and of the asked periods."""

    policy: Policy
    least: Rational
    last: LastPeriod | None
    pool: Shared | None = None
    windows: Windows | None = None


class StatementContent(BaseModel):
    """What is promised, in words and as data."""

    words: str
    model_config = ConfigDict(extra="allow")


class Health(Form):
    """Whether the service can do its work, and why not."""

    status: str
    ledger: str | None = Field(default=None, description="The identity of the ledger.")
    witness: bool | None = Field(default=None, description="Whether a witness watches it.")
    age_seconds: float | None = Field(default=None, description="Time since the last check.")


class StreamSummary(Form):
    """A stream at a glance."""

    name: str
    released: int | None
    open_steps: int
    w: int
    lag_seconds: float | None
    budget: Budget
    last: Period | None


class Overview(Form):
    """All streams that the client may read, and the health of the service."""

    health: Health
    streams: list[StreamSummary]


class ErrorContent(Form):
    """What was refused."""

    type: str
    message: str
    request_id: str | None = None


class Problem(Form):
    """The one form of all refusals."""

    error: ErrorContent


def explain(errors: list[Any]) -> str:
    """Return where a request is wrong and what it should be, but not what it is.

    >>> explain([{"loc": ("observations", 0, "when"), "msg": "Field required"}])
    'observations.0.when: Field required'
    """
    found = dict.fromkeys(f"{_place(one)}: {one['msg']}" for one in errors[:50])
    return "; ".join(list(found)[:10])


def _place(error: Any) -> str:
    # From the fourth part on a place may name keys of the input, and so does the last one of a key that is not known.
    known = error["loc"][:3] if error.get("type") != "extra_forbidden" else error["loc"][:-1][:3]
    return ".".join(map(str, known)) or "body"
