"""The names of apps and workers, and the names that an app registers in its ledger.

Every process of one app must use the same app name: workers on all hosts, child processes, and processes after a
restart. It is the name given by the user, else the module that creates the app, which does not depend on how it is
started.
"""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from types import FrameType
from typing import TYPE_CHECKING

from ulid import ULID

from penstock.app.service import Service, needs_objects
from penstock.errors import UsageError
from penstock.ledger.records import OwnedName

if TYPE_CHECKING:
    from penstock.app.context import AppContext
    from penstock.ledger import Ledger
    from penstock.ledger.records import WorkOwner


NAME_CHARS_MAX = 200


def checked_name(name: str) -> str:
    """Return the name. Raises `UsageError` for one that a ledger cannot store."""
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise UsageError(f"App(name={name!r}) is invalid: a name has 1 to {NAME_CHARS_MAX} printable characters.")
    return name


def calling_module() -> str:
    """Return the name of the nearest module up the stack that is not Penstock's own.

    A module that runs as a script gets the name that it would be imported by.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_own(str(frame.f_globals.get("__name__", ""))):
        frame = frame.f_back
    if frame is None:
        return "app"
    name = str(frame.f_globals.get("__name__", "app"))
    return name if name != "__main__" else _main_name(frame.f_globals)


def register(context: "AppContext", services: Sequence[Service]) -> "Mapping[str, WorkOwner]":
    """Register the names that these services use in the app's ledger; return the owners of keys, by handler.

    Raises `ConfigurationError` for a name that belongs to another app.
    """
    uses = [
        OwnedName(kind="objects" if needs_objects(service) else "keys", name=service.name, queue=service.queue_name)
        for service in services
    ]
    return _registered(context, uses) if uses else {}


def register_pipeline(context: "AppContext", name: str, *, queue: str) -> None:
    """Register the name of a pipeline that runs alone. Raises as `register` does."""
    _registered(context, [OwnedName(kind="objects", name=name, queue=queue)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectNames:
    """The names of the pipelines and object handlers that a command acts on, each with its queue."""

    app: str
    is_named: bool
    queues: Mapping[str, str]

    def check(self, ledger: "Ledger") -> None:
        """Raise `ConfigurationError` if the ledger holds objects of another app under one of these names."""
        uses = [OwnedName(kind="objects", name=name, queue=queue) for name, queue in self.queues.items()]
        ledger.owners.check(self.app, is_named=self.is_named, uses=uses)


def object_names(context: "AppContext", services: Sequence[Service], *, only: str | None = None) -> ObjectNames:
    """Return the names of an app's pipelines and object handlers, or only the name ``only``."""
    queues = {
        service.name: service.queue_name
        for service in services
        if needs_objects(service) and only in (None, service.name)
    }
    return ObjectNames(app=context.name, is_named=context.is_named, queues=queues)


def worker_id() -> str:
    """Return a name that is unique among all processes: host, process id and ULID."""
    return f"{socket.gethostname()}-{os.getpid()}-{ULID()}"


def own_version() -> str:
    """Return the version of Penstock."""
    try:
        return version("penstock")
    except PackageNotFoundError:
        return "source"


def _registered(context: "AppContext", uses: Sequence[OwnedName]) -> "Mapping[str, WorkOwner]":
    found: Mapping[str, WorkOwner] = context.ledger.owners.register(context.name, is_named=context.is_named, uses=uses)
    return found


def _is_own(module: str) -> bool:
    return module == "penstock" or module.startswith("penstock.")


def _main_name(found: Mapping[str, object]) -> str:
    name = getattr(found.get("__spec__"), "name", None)
    if isinstance(name, str):  # python -m shop, python -m shop.worker
        return name.removesuffix(".__main__")
    file = found.get("__file__")
    return PurePath(file).stem if isinstance(file, str) else "app"
