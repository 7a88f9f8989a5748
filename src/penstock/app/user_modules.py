"""Import the modules and functions that users name, such as ``module:function``, also from the current folder."""

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.errors import SettingUnfit, UsageError
from penstock.messaging.addresses import masked
from penstock.messaging.failure import is_library, location_of


def function_named(name: str, *, purpose: str) -> Callable[..., Any]:
    """Return the function named ``module:function``. ``purpose`` begins the messages, such as "The transform".

    Raises `UsageError` if the name leads to no function, or with the error that the module raised on import.
    """
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise UsageError(f"{purpose} {name!r} is not of the form module:function.")
    function: Callable[..., Any] | None = getattr(import_here(module_name), function_name, None)
    if not callable(function):
        raise UsageError(f"The module {module_name} has no function {function_name}.")
    return function


def import_here(module_name: str, *, attribute: str = "NAME") -> ModuleType:
    """Import a module, also from the current folder. ``attribute`` is the wanted attribute, for hints in messages.

    Raises `UsageError` if there is no such module or importing it fails, and `SettingUnfit` if a setting is the cause.
    """
    here = Path.cwd()
    if module_name.endswith(".py") and (file := here / module_name).is_file():
        known = file.relative_to(here).with_suffix("").parts if file.is_relative_to(here) else (file.stem,)
        raise UsageError(f"{module_name} is a file, and a module is meant: write {'.'.join(known)}:{attribute}.")
    if "" not in sys.path and str(here) not in sys.path:
        sys.path.insert(0, str(here))
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(f"There is no module {error.name} in {here} or on Python's path.") from error
        raise _raised(module_name, error) from error
    except SettingUnfit:  # an invalid setting that the module reads; its code is correct
        raise
    except (Exception, SystemExit) as error:  # a script without a main guard may exit
        raise _raised(module_name, error) from error


def _raised(module_name: str, error: BaseException) -> UsageError:
    """Return an error with the module's exception, without passwords, and the line of the user's code."""
    if isinstance(error, SyntaxError) and Path(error.filename or "").is_file():
        location: str | None = f"{error.filename}:{error.lineno}"
    else:
        location = location_of(error) or _innermost(error)
    text = masked(str(error.msg if isinstance(error, SyntaxError) else error)).rstrip(".")
    where = "" if location is None else f" at {location}"
    return UsageError(f"The module {module_name} cannot be imported: {type(error).__name__}: {text}{where}.")


def _innermost(error: BaseException) -> str | None:
    """Return the last line outside the import machinery and Penstock, for an app that is itself installed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
