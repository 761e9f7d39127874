"""The shape of tau2-bench's retail files, as far as an import needs it. What else is in them is left alone."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError

__all__ = ["DatabaseFile", "MisshapenError", "SplitsFile", "TaskEntry", "check_database", "read_splits", "read_task"]

T = TypeVar("T")


class MisshapenError(Exception):
    """A value has another shape; the message is the place in it and what was expected there."""


class _Shape(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class Action(_Shape):
    """One reference call."""

    name: str
    arguments: dict[str, Any]
    requestor: str = "assistant"


class Criteria(_Shape):
    """What a task is scored by."""

    actions: list[Action] | None = None
    communicate_info: list[str] | None = None
    nl_assertions: list[str] | None = None
    env_assertions: list[Any] | None = None
    reward_basis: list[str] | None = None


class Instructions(_Shape):
    """What the customer is told."""

    task_instructions: str
    reason_for_call: str
    known_info: str | None = None
    unknown_info: str | None = None


class Scenario(_Shape):
    """Who the customer is, and what they want."""

    persona: str | None = None
    instructions: Instructions


class TaskEntry(_Shape):
    """One task of tasks.json."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
    user_scenario: Scenario
    initial_state: Any = None
    evaluation_criteria: Criteria


class _Name(_Shape):
    first_name: str
    last_name: str


class _Address(_Shape):
    address1: str
    address2: str
    city: str
    country: str
    state: str
    zip: str


class _PaymentMethod(_Shape):
    source: str
    id: str
    balance: float | None = None

    @model_validator(mode="after")
    def _card_has_a_balance(self) -> _PaymentMethod:
        if self.source == "gift_card" and self.balance is None:
            raise PydanticCustomError("no_balance", "a gift card needs a balance")
        return self


class _User(_Shape):
    user_id: str
    name: _Name
    address: _Address
    email: str
    payment_methods: dict[str, _PaymentMethod]
    orders: list[str]


class _Variant(_Shape):
    item_id: str
    options: dict[str, str]
    available: bool
    price: float


class _Product(_Shape):
    name: str
    product_id: str
    variants: dict[str, _Variant]


class _Item(_Shape):
    name: str
    product_id: str
    item_id: str
    price: float
    options: dict[str, str]


class _Payment(_Shape):
    transaction_type: str
    amount: float
    payment_method_id: str


class _Order(_Shape):
    order_id: str
    user_id: str
    address: _Address
    items: list[_Item]
    status: str
    payment_history: list[_Payment]


class DatabaseFile(_Shape):
    """db.json: the store."""

    products: dict[str, _Product]
    users: dict[str, _User]
    orders: dict[str, _Order]


SplitsFile = dict[str, list[str]]
"""split_tasks.json: task ids by split."""

_DATABASE = TypeAdapter(DatabaseFile)
_SPLITS = TypeAdapter(SplitsFile)
_TASK = TypeAdapter(TaskEntry)


def check_database(data: object) -> None:
    """See that the store's tools can work on it.

    Raises:
        MisshapenError: When they cannot.
    """
    _read(_DATABASE, data)


def read_splits(data: object) -> SplitsFile:
    """Return the splits.

    Raises:
        MisshapenError: When they are something else.
    """
    return _read(_SPLITS, data)


def read_task(data: object) -> TaskEntry:
    """Return one task.

    Raises:
        MisshapenError: When it is something else.
    """
    return _read(_TASK, data)


def _read(adapter: TypeAdapter[T], data: object) -> T:
    try:
        return adapter.validate_python(data, strict=True)
    except ValidationError as exc:
        errors = exc.errors(include_url=False)
        first = errors[0]
        place = ".".join(str(part) for part in first["loc"])
        message = f"{first['msg'][0].lower()}{first['msg'][1:]}"
        more = f" (and {len(errors) - 1} more like this)" if len(errors) > 1 else ""
        raise MisshapenError(f"{place}: {message}{more}" if place else f"{message}{more}") from None
