"""Load the `App` that a command line names as ``shop:app``."""

from types import ModuleType
from typing import Any

from penstock.app.app import App
from penstock.app.user_modules import import_here
from penstock.errors import UsageError


def load_app(name: str) -> App:
    """Return the app named ``module:attribute``; the attribute may be a path, as in ``shop.main:service.app``.

    Modules in the current folder are found too. Raises `UsageError` if the name leads to no app, or with the error that
    the module raised on import.
    """
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise UsageError(
            f"{name!r} does not name an app: write module:attribute, as in shop:app for the `app` in shop.py."
        )
    module = import_here(module_name, attribute=path)
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise UsageError(f"The module {module_name} has no {path}; {_apps_in(module)}.")
        found = getattr(found, part)
    if not isinstance(found, App):
        raise UsageError(f"{name} is no App but {_kind(found)}; {_apps_in(module)}.")
    return found


def _apps_in(module: ModuleType) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, App))
    return f"its apps: {', '.join(names)}" if names else "there is no App in it"


def _kind(value: object) -> str:
    return f"the module {value.__name__}" if isinstance(value, ModuleType) else f"of type {type(value).__name__}"
