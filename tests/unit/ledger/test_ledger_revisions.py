"""Tables that could not be changed: who can change them is told."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from penstock.errors import ConfigurationError, UsageError
from penstock.ledger.migrate import HEAD, Revisions, revised


def test_a_refusal_of_the_database_names_the_verb_and_who_may_run_it() -> None:
    with (
        pytest.raises(ConfigurationError, match=f"no CREATE; .* revision {HEAD}.* `penstock ledger upgrade`"),
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
    with pytest.raises(UsageError, match=f"is at {HEAD}, which is later than 0002: `penstock ledger downgrade 0002`"):
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
