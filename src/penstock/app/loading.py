"""From ``shop:app`` on a command line to the `App` it names."""

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.app.app import App
from penstock.errors import UsageError


def load_app(name: str) -> App:
    """The app that ``module:attribute`` names; the attribute may be a path, as in ``shop.main:service.app``.

    Modules of the current folder are found too. Raises `UsageError` for a name that leads to no app, and with what the
    module raised when it was imported.
    """
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise UsageError(
            f"{name!r} does not name an app: write module:attribute, as in shop:app for the `app` in shop.py."
        )
    module = import_here(module_name)
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise UsageError(f"The module {module_name} has no {path}; {_apps_in(module)}.")
        found = getattr(found, part)
    if not isinstance(found, App):
        raise UsageError(f"{name} is no App but {_kind(found)}; {_apps_in(module)}.")
    return found


def import_here(module_name: str) -> ModuleType:
    """The module of that name, also from the current folder. Raises `UsageError` where there is none, or it raises."""
    here = Path.cwd()
    if "" not in sys.path and str(here) not in sys.path:
        sys.path.insert(0, str(here))
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"There is no module {error.name}; it is looked for in {here} and where Python looks."
            ) from error
        raise _raised(module_name, error) from error
    except (Exception, SystemExit) as error:  # a script without a guard may end the process
        raise _raised(module_name, error) from error


def _raised(module_name: str, error: BaseException) -> UsageError:
    """What a module raised, and on which line: the last one that is not the import machinery's."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _of_import(frame.filename)]
    if isinstance(error, SyntaxError):
        place = f" at {error.filename}:{error.lineno}"
    else:
        place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    words = error.msg if isinstance(error, SyntaxError) else error
    return UsageError(f"The module {module_name} cannot be imported: {type(error).__name__}: {words}{place}.")


def _of_import(filename: str) -> bool:
    return filename in (__file__, importlib.__file__) or filename.startswith("<frozen importlib")


def _apps_in(module: ModuleType) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, App))
    return f"its apps: {', '.join(names)}" if names else "there is no App in it"


def _kind(value: object) -> str:
    return f"the module {value.__name__}" if isinstance(value, ModuleType) else f"of type {type(value).__name__}"
