"""A queue as sender and handler know it: its name, and the contract of what it carries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from penstock.errors import ConfigurationError
from penstock.messaging.options import checks_class_options

Body = TypeVar("Body")
Upcast = Callable[[Any], Any]  # the JSON value of one version -> that of the next


@checks_class_options("Queue")
@dataclass(frozen=True, eq=False)  # without slots: `Queue[Model](...)` sets an attribute
class Queue(Generic[Body]):
    """The contract of one queue; sender and handler import the same one.

    ``name`` is a queue's name, URL or ARN. Without a ``model`` the handler gets the `Message` as it is, and bodies sent
    are bytes, text or JSON values. With one (a pydantic model, or a type that msgspec knows) bodies are checked.

    ``schema`` is the version of the model, from 1. It travels in the attribute ``penstock-schema``, and the model's
    name (or ``type``) in ``penstock-type``. A message without them is taken for the oldest version that an upcast
    leads from, else for the current one. ``upcasts`` lead from each older version to the next: ``{1: v1_to_v2}``.
    """

    name: str
    model: type[Body] | None = None
    schema: int = field(default=1, kw_only=True)
    type: str | None = field(default=None, kw_only=True)
    upcasts: Mapping[int, Upcast] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigurationError("A queue needs a name, URL or ARN.")
        if self.schema < 1:
            raise ConfigurationError(f"The queue {self.name} has schema version {self.schema}; they begin with 1.")
        versions = sorted(self.upcasts)
        if versions and versions != list(range(versions[0], self.schema)):
            raise ConfigurationError(
                f"The upcasts of the queue {self.name} are from {', '.join(map(str, versions))}; each leads to the "
                f"next version, so they have to reach without a gap up to {self.schema}."
            )
