"""Revisions of the ledger's tables: upgrades, downgrades, and errors that name the command to run."""

import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import pytest
from sqlalchemy.exc import OperationalError

import penstock
from penstock.errors import ConfigurationError, UsageError
from penstock.ledger import migrate
from penstock.ledger.migrate import Revisions, newest_revision, revised

HEAD = newest_revision()


def test_a_refused_statement_names_the_upgrade_command() -> None:
    with (
        pytest.raises(ConfigurationError, match=f"no CREATE; .* revision {HEAD}.* `penstock admin ledger upgrade`"),
        revised(),
    ):
        raise ConfigurationError("no CREATE") from OperationalError("CREATE TABLE", {}, sqlite3.OperationalError("no"))


def test_another_configuration_error_is_unchanged() -> None:
    with pytest.raises(ConfigurationError, match=r"^newer$"), revised():
        raise ConfigurationError("newer")


def test_a_ledger_without_tables_can_be_upgraded_and_downgraded(tmp_path: Path) -> None:
    revisions = Revisions.open(tmp_path / "ledger.db")
    assert (revisions.facts().revision, revisions.facts().tables) == (None, {})
    assert revisions.pipelines() == []
    with pytest.raises(UsageError, match="has no tables, which is earlier than 0001"):
        revisions.downgrade("0001")
    assert revisions.downgrade("base") == (None, None)
    assert revisions.upgrade("0002") == (None, "0002")
    assert revisions.upgrade() == ("0002", HEAD)
    with pytest.raises(
        UsageError, match=f"is at {HEAD}, which is later than 0002: `penstock admin ledger downgrade 0002`"
    ):
        revisions.upgrade("0002")
    assert revisions.downgrade("head") == (HEAD, HEAD)
    assert revisions.downgrade("base") == (HEAD, None)
    with pytest.raises(UsageError, match=r"no revision 0099 .* there are base, 0001"):
        revisions.upgrade("0099")
    revisions.close()


def test_an_error_for_an_unreadable_ledger_names_no_revision(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("this is not a database, and long enough to be recognized as none" * 40)
    revisions = Revisions.open(tmp_path / "ledger.db")
    with pytest.raises(ConfigurationError) as caught:
        revisions.upgrade()
    assert "revision" not in str(caught.value)
    revisions.close()


def test_the_newest_revision_is_found_in_a_zip_file(tmp_path: Path) -> None:
    """A folder in a zip file cannot be listed."""
    package = Path(penstock.__file__).parent
    with ZipFile(tmp_path / "penstock.zip", "w") as archive:
        for path in package.rglob("*.py"):
            archive.write(path, path.relative_to(package.parent))
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'penstock.zip')!r})\n"
        "from penstock.ledger import migrate\n"
        "print(migrate.newest_revision(), migrate.__file__)"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert completed.stdout.startswith(f"{HEAD} {tmp_path}"), completed.stderr


def test_missing_migrations_are_named_in_the_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(migrate, "versions", SimpleNamespace(__path__=[str(tmp_path)], __name__="their.package"))
    newest_revision.cache_clear()
    with pytest.raises(ConfigurationError, match=r"no migrations for the ledger's tables \(their\.package\): install"):
        newest_revision()
