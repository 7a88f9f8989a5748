"""Defaults that commands repeat, since importing where they come from would slow `--help` down, are the same ones."""

from penstock.cli import ingest
from penstock.cli.dead import acting as acting
from penstock.cli.dead import files as files
from penstock.objects import watcher
from penstock.operations.dead_letters import acting as dead_acting
from penstock.operations.dead_letters import files as dead_files


def test_what_is_repeated_is_the_same() -> None:
    assert ingest.SETTLE_SECONDS == watcher.SETTLE_SECONDS
    assert acting.CANARY_SECONDS == dead_acting.CANARY_SECONDS
    assert files.STDOUT == dead_files.STDOUT
