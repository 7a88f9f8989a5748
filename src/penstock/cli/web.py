"""`penstock web`: serve the dashboard of an app, or of a table."""

import sys
import threading
from getpass import getpass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.apps import AppArgument
from penstock.cli.exits import stoppable
from penstock.cli.options import grouped_options
from penstock.cli.output import Json, print_json, printable, talk
from penstock.cli.where import ScopeOptions
from penstock.errors import ConfigurationError, UsageError

if TYPE_CHECKING:
    from penstock.app.scope import Scope
    from penstock.web.server import WebServer
    from penstock.worker.shutdown import StopSignal

DASHBOARD = "dashboard"  # in place of a worker's id in its log
PACKAGES = ("starlette", "jinja2", "uvicorn", "sse_starlette", "python_multipart")
PASSWORD_CHARACTERS_MIN = 8


@grouped_options
def web(
    where: ScopeOptions,
    app: AppArgument = None,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="HOST:PORT", help="Listen here; default: web.address."),
    ] = None,
    hash_password: Annotated[
        bool,
        typer.Option(
            "--hash-password",
            help="Read a password from the terminal, or from standard input, and print its hash for web.users.",
        ),
    ] = False,
    json_: Json = False,
) -> None:
    """Serve the dashboard until Ctrl-C or SIGTERM.

    Pages about queues, dead letters, objects, batches and workers, which refresh themselves, with the actions of the
    commands. Addresses of other hosts need users: see web.users and web.proxy_header.
    """
    require_web()
    if hash_password:
        _print_hash(json_=json_)
        return
    where = where.with_names(app)
    scope = where.scope(make=where.request.means_app)
    with stoppable() as stop:
        server = dashboard_server(
            scope,
            scope.settings.web_address if address is None else address,
            setting="web.address" if address is None else "--address",
            title=where.request.app if scope.table is None else None,
        )
        server.open()
        try:
            if json_:
                print_json({"url": server.url})
                sys.stdout.flush()  # a program reads it while the command runs
            talk(printable(f"The dashboard is at {server.url} - Ctrl-C ends it."))
            _wait_for(stop)
        finally:
            server.close()


def until_stopped() -> None:
    """Wait for SIGTERM or Ctrl-C."""
    with stoppable() as stop:
        _wait_for(stop)


def _wait_for(stop: "StopSignal") -> None:
    stopped = threading.Event()
    with stop.watched_by(stopped):
        while not stop.requested:
            stopped.wait()
            stopped.clear()


def dashboard_server(scope: "Scope", address: str, *, setting: str, title: str | None = None) -> "WebServer":
    """Return the server of a scope's dashboard. ``setting`` is the origin of the address, for errors.

    Raises `ConfigurationError` for an address that is none, or that may not be served without users.
    """
    from penstock.app.telemetry import open_log
    from penstock.messaging.clock import SystemClock
    from penstock.monitoring.endpoint import address_of
    from penstock.web.access import authenticator, check_access
    from penstock.web.dashboard import dashboard
    from penstock.web.server import WebServer

    parsed = address_of(address, setting=setting)
    for warning in check_access(scope.settings, parsed):
        talk(printable(warning))
    clock = SystemClock()
    access = authenticator(scope.settings, clock=clock)
    pages = dashboard(scope, access=access, title=title, clock=clock, emit=open_log(scope.settings, worker=DASHBOARD))
    return WebServer(pages, address=parsed, setting=setting)


def require_web() -> None:
    """Raise `ConfigurationError`, naming the extra, if a package of the dashboard is missing. Imports nothing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"The dashboard needs packages of its own, and {', '.join(missing)} cannot be found here: run pip install "
            "'penstock[web]'."
        )


def _print_hash(*, json_: bool) -> None:
    """Print the hash of a password that is read without showing it. It is in no argument, so in no history."""
    from penstock.web.passwords import hashed

    password = _read_password()
    if len(password) < PASSWORD_CHARACTERS_MIN:
        raise UsageError(f"The password has {len(password)} characters; use {PASSWORD_CHARACTERS_MIN} or more.")
    text = str(hashed(password))
    if json_:
        print_json({"hash": text})
        return
    print(text)
    talk(f'Write it into penstock.toml: [web] users = {{ NAME = "{text.partition(":")[0]}:..." }}')


def _read_password() -> str:
    if not sys.stdin.isatty():
        lines = sys.stdin.read().splitlines()
        if len(lines) > 1:
            raise UsageError("Standard input has several lines, and a password is one.")
        return "".join(lines)
    password = getpass("Password: ")
    if password != getpass("The same again: "):
        raise UsageError("The two passwords differ; nothing was made.")
    return password
