"""Defaults that commands repeat, since importing where they come from would slow `--help` down, are the same ones."""

from penstock.app import dead_acting, dead_files
from penstock.cli import dead_acting as acting
from penstock.cli import dead_files as files
from penstock.cli import ingest
from penstock.objects import watcher


def test_what_is_repeated_is_the_same() -> None:
    assert ingest.SETTLE_SECONDS == watcher.SETTLE_SECONDS
    assert acting.CANARY_SECONDS == dead_acting.CANARY_SECONDS
    assert files.STDOUT == dead_files.STDOUT
