"""Tables that could not be changed: who can change them is told."""

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from penstock.errors import ConfigurationError, UsageError
from penstock.ledger.migrate import HEAD, revised
from penstock.ledger.revisions import Revisions


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
    with pytest.raises(ConfigurationError, match="nothing to take back"):
        revisions.downgrade()
    assert revisions.upgrade("0002") == (None, "0002")
    assert revisions.upgrade() == ("0002", HEAD)
    assert revisions.downgrade("head") == (HEAD, HEAD)
    assert revisions.downgrade("base") == (HEAD, None)
    with pytest.raises(UsageError, match=r"no revision 0099 .* there are base, 0001"):
        revisions.upgrade("0099")
    revisions.close()
