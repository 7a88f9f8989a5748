"""The name of a transform, and the check that a run has the transform that made the rows of its table.

The name is that of the function as Python imports it, ``module:function``. It says nothing about the function's code: a
changed function under the same name is the same transform.
"""

import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from penstock.errors import UsageError
from penstock.ledger.records import PipelineRow
from penstock.ledger.rules import made_with

NO_TRANSFORM = ""  # the name of none
_SCRIPT = "__main__"


def name_of(transform: Callable[..., Any] | None) -> str:
    """Return the name of a declared transform, empty for none.

    A partial has the name of its function, whatever its arguments, and an object with ``__call__`` that of its class,
    unless its attribute ``transform_name`` has another one. All lambdas of one module have the same name.
    """
    if transform is None:
        return NO_TRANSFORM
    while isinstance(transform, partial):
        transform = transform.func
    own = None if isinstance(transform, type) else getattr(transform, "transform_name", None)
    if isinstance(own, str):
        return own
    named: Any = transform if isinstance(getattr(transform, "__qualname__", None), str) else type(transform)
    return f"{_module_name(str(named.__module__))}:{named.__qualname__}"


def check_transform(row: PipelineRow, name: str, *, table: str, has: str, remedy: str, command: str) -> None:
    """Raise `UsageError` if the rows of a pipeline were made with another transform than ``name``.

    ``has`` is the subject and verb of the run, such as "this ingest has"; ``remedy`` says how to give it the recorded
    transform; ``command`` accepts the new one.
    """
    if row.transform is None or row.transform == name:
        return
    other = f"the transform {name}" if name else "none"
    raise UsageError(
        f"The rows of {table} were made {made_with(row.transform)}, and {has} {other}: {remedy}. If new rows are to be "
        f"made differently on purpose, run `{command}` first."
    )


def accepting(name: str, options: str) -> str:
    """Return the command that records another transform. ``options`` select the pipeline: empty, or after a blank."""
    return f"penstock admin schema transform {shlex.quote(name) if name else '--none'}{options}"


def _module_name(module: str) -> str:
    """Return the name under which others import a module, also for the script that runs."""
    if module != _SCRIPT:
        return module
    script = sys.modules[_SCRIPT]
    spec, file = getattr(script, "__spec__", None), getattr(script, "__file__", None)
    if spec is not None:
        return str(spec.name).removesuffix(f".{_SCRIPT}")
    return _SCRIPT if file is None else Path(file).stem
