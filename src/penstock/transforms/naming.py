"""The names of ready-made transforms, by which a ledger knows them again."""

from dataclasses import fields
from typing import Any

MODULE = "penstock.transforms"


def transform_name(transform: Any, /, **ready_made: object) -> str:
    """Return the name of a transform that is a dataclass: of the equal one among ``ready_made``, else of its class.

    The latter has the options that differ from their defaults, so that a new option renames no transform in use.
    """
    for name, other in ready_made.items():
        if other == transform:
            return f"{MODULE}:{name}"
    options = [
        f"{field.name}={value!r}"
        for field in fields(transform)
        if (value := getattr(transform, field.name)) != field.default
    ]
    return f"{MODULE}:{type(transform).__name__}({', '.join(options)})"
