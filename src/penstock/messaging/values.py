"""A dataclass for values of which each message has one: frozen for type checkers, quick to create at run time.

The constructor of a frozen dataclass calls ``object.__setattr__`` for each field, which costs three times as much as
plain assignments (measured), and the worker creates these values for every message.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass as value_dataclass
else:
    Class = TypeVar("Class", bound=type)

    def value_dataclass(*, frozen: bool, slots: bool, kw_only: bool) -> Callable[[Class], Class]:
        """Decorate a class as `dataclasses.dataclass` does; only type checkers enforce ``frozen``."""
        return dataclass(slots=slots, kw_only=kw_only, unsafe_hash=frozen)


__all__ = ["value_dataclass"]
