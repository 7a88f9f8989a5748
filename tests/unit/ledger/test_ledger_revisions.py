"""Tables that could not be changed: who can change them is told."""

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


def test_a_refusal_of_the_database_names_the_verb_and_who_may_run_it() -> None:
    with (
        pytest.raises(ConfigurationError, match=f"no CREATE; .* revision {HEAD}.* `penstock admin ledger upgrade`"),
        revised(),
    ):
        raise ConfigurationError("no CREATE") from OperationalError("CREATE TABLE", {}, sqlite3.OperationalError("no"))


def test_a_sentence_of_our_own_stays_as_it_is() -> None:
    with pytest.raises(ConfigurationError, match=r"^newer$"), revised():
        raise ConfigurationError("newer")


def test_a_ledger_without_tables_is_made_and_taken_back(tmp_path: Path) -> None:
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


def test_of_tables_that_could_not_be_looked_at_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_text("this is no database, and long enough to be told from one" * 40)
    revisions = Revisions.open(tmp_path / "ledger.db")
    with pytest.raises(ConfigurationError) as caught:
        revisions.upgrade()
    assert "revision" not in str(caught.value)
    revisions.close()


def test_a_package_in_a_zip_file_knows_its_newest_revision(tmp_path: Path) -> None:
    """There no folder can be listed."""
    package = Path(penstock.__file__).parent
    with ZipFile(tmp_path / "penstock.zip", "w") as archive:
        for path in package.rglob("*.py"):
            archive.write(path, path.relative_to(package.parent))
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'penstock.zip')!r})\n"
        "from penstock.ledger import migrate\n"
        "print(migrate.newest_revision(), migrate.__file__)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.stdout.startswith(f"{HEAD} {tmp_path}"), said.stderr


def test_without_migrations_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(migrate, "versions", SimpleNamespace(__path__=[str(tmp_path)], __name__="their.package"))
    newest_revision.cache_clear()
    with pytest.raises(ConfigurationError, match=r"no migrations for the ledger's tables \(their\.package\): install"):
        newest_revision()
