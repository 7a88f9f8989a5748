"""The lists of tests that run with a second harness name existing tests: a rename would otherwise shorten a list
unnoticed.
"""

from pathlib import Path

import pytest
from tests.conformance.broker_harnesses import SECOND_HARNESSES, MemoryHarness
from tests.conformance.ledger.conftest import IN_MEMORY

from penstock.messaging.broker import QueueSettings

FOLDER = Path(__file__).parent
NAMES = {name for names in (*SECOND_HARNESSES.values(), IN_MEMORY) for name in names}


@pytest.fixture(scope="module")
def sources() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(FOLDER.rglob("test_*.py")))


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_listed_test_exists(sources: str, name: str) -> None:
    assert f"\ndef {name}(" in sources


def test_a_later_broker_in_memory_replaces_the_settings_of_its_queues() -> None:
    harness = MemoryHarness()
    first = harness.broker(queues=[QueueSettings(name="q"), QueueSettings(name="other", dead_letter_queue="graves")])
    harness.broker("w2", queues=[QueueSettings(name="q", dead_letter_queue="later")])
    assert [first.dead_letter_queue(queue) for queue in ("q", "other")] == ["later", "graves"]
    harness.close()
