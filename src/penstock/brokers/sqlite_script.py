"""What the files in sql/ hold: the statements of the queue by name, and the steps of its schema."""

import sqlite3
from collections.abc import Iterator, Mapping
from importlib import resources


def statements() -> Mapping[str, str]:
    """The statements of sql/queue.sql by name."""
    named: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in _text("queue.sql").splitlines():
        if line.startswith("-- name: "):
            lines = named.setdefault(line.removeprefix("-- name: ").strip(), [])
        elif not line.startswith("--"):
            lines.append(line)
    return {name: "\n".join(body).strip() for name, body in named.items()}


def schema_step(version: int) -> Iterator[str]:
    """What makes a file of this version out of one of the version before; version 0 is an empty file.

    One statement at a time, as `executescript` would commit before it begins.
    """
    statement = ""
    for line in _text(f"schema_{version}.sql").splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _text(name: str) -> str:
    return resources.files("penstock.brokers").joinpath("sql", name).read_text(encoding="utf-8")
