"""Limits on the length of names, the same on every database, even one that enforces no width."""

import pytest
from tests.conformance.ledger.ledger_harness import LedgerHarness

from penstock.errors import ConfigurationError
from penstock.ledger.rules import HANDLER_CHARS_MAX, PIPELINE_CHARS_MAX
from penstock.ledger.schema import HANDLER, PIPELINE


def test_the_length_limits_equal_the_column_widths() -> None:
    assert (PIPELINE.length, HANDLER.length) == (PIPELINE_CHARS_MAX, HANDLER_CHARS_MAX)


def test_a_pipeline_id_of_the_full_width_is_accepted_and_a_longer_one_refused(harness: LedgerHarness) -> None:
    longest = "\N{PILE OF POO}" * PIPELINE_CHARS_MAX
    assert harness.ledger.ensure_pipeline(longest).id == longest
    with pytest.raises(ConfigurationError, match=r"has 513 characters, and the ledger takes 512 at most"):
        harness.ledger.ensure_pipeline(longest + "a")


def test_a_handler_name_of_the_full_width_is_accepted_and_a_longer_one_refused(harness: LedgerHarness) -> None:
    longest = "\N{PILE OF POO}" * HANDLER_CHARS_MAX

    def begin(handler: str) -> None:
        harness.ledger.begin_work(handler, "k" * 100_000, attempt_id=handler[-1:], worker="w", lease_seconds=60.0)

    begin(longest)
    with pytest.raises(ConfigurationError, match=r"a name of 257 characters, and the ledger takes 256 at most"):
        begin(longest + "a")
