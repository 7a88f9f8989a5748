"""Which app a command means: APP, --app, PENSTOCK_APP, or `app` in penstock.toml."""

import re
from typing import Annotated

import typer

from penstock.config import SETTINGS_FILE, load_settings, variable
from penstock.errors import ConfigurationError, UsageError

APP_VARIABLE = variable("app")
_APP_NAME = re.compile(r"[\w.]+:[\w.]+")  # module:attribute; an address has slashes after its colon

AppArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="APP",
        help=f"The app, such as shop:app (module:attribute). Default: --app, {APP_VARIABLE}, {SETTINGS_FILE}.",
        show_default=False,
    ),
]
AppOption = Annotated[
    str | None, typer.Option("--app", metavar="APP", help="The app, such as shop:app (module:attribute).")
]
PipelineArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="PIPELINE",
        help="The name of a pipeline or object handler. It may be the only argument if the app is set otherwise.",
        show_default=False,
    ),
]


def app_if_any(argument: str | None, option: str | None = None) -> str | None:
    """Return the app that the command line names, else the configured one, else None.

    Raises `UsageError` if argument and option name different apps.
    """
    if argument and option and argument != option:
        raise UsageError(f"APP is {argument} and --app is {option}: name one app.")
    return argument or option or configured_app()


def required_app(argument: str | None, option: str | None = None) -> str:
    """Return the app as `app_if_any` does. Raises `UsageError` if no app is named."""
    app = app_if_any(argument, option)
    if app is None:
        raise UsageError(
            f"No app is named: give APP or --app, such as shop:app; or set {APP_VARIABLE}; or write "
            f'app = "shop:app" into {SETTINGS_FILE}.'
        )
    return app


def app_and_pipeline(first: str | None, second: str | None) -> tuple[str | None, str | None]:
    """Return APP and PIPELINE of a command line. A single argument is the app if it has the form module:attribute."""
    if first is not None and second is None and not _APP_NAME.fullmatch(first):
        return None, first
    return first, second


def app_and_reader(first: str | None, second: str | None, option: str | None) -> tuple[str, str]:
    """Return the app and the name of its pipeline or object handler. Raises `UsageError` if either is missing."""
    argument, pipeline = app_and_pipeline(first, second)
    app = required_app(argument, option)
    if pipeline is None:
        raise UsageError(f"No pipeline of {app} is named: give PIPELINE.")
    return app, pipeline


def configured_app(*, strict: bool = True) -> str | None:
    """Return the app of the environment or of penstock.toml, None if neither names one.

    Raises `ConfigurationError` for invalid settings; unless ``strict``, for commands that report them themselves.
    """
    try:
        return load_settings().app or None
    except ConfigurationError:
        if strict:
            raise
        return None
