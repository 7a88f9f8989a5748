"""Access to a dashboard: its users, and what they may do."""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.routing import Route

from penstock.config import Settings
from penstock.errors import ConfigurationError
from penstock.monitoring.endpoint import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class WebUser:
    """A person who looks at a dashboard."""

    name: str
    may_act: bool


LOCAL_USER = WebUser(name="local", may_act=True)


def user_of(_: Request) -> WebUser | None:
    """Return the user of a request; None if there is none."""
    return LOCAL_USER


def csrf_token(_: Request) -> str:
    """Return the token that a form of this page carries."""
    return ""


def action(path: str, handler: Callable[[Request], Any]) -> Route:
    """Return the route of a handler that changes something."""

    async def endpoint(request: Request) -> Any:
        request.state.form = await request.form()
        return await run_in_threadpool(handler, request)

    return Route(path, endpoint, methods=["POST"], name=handler.__name__)


def form_of(request: Request) -> FormData:
    """Return the fields of the form, in a handler of `action`."""
    form: FormData = request.state.form
    return form


def check_access(_: Settings, address: Address) -> None:
    """Raise `ConfigurationError` if this address may not be served without users."""
    if address.host != "localhost" and not ipaddress.ip_address(address.host).is_loopback:
        raise ConfigurationError(f"The dashboard at {address} would be open to everyone: listen on 127.0.0.1.")
