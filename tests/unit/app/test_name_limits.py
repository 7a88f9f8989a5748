"""Names that are too long are rejected when they are declared."""

import pytest

from penstock import App
from penstock.brokers.memory.broker import MemoryBroker
from penstock.errors import ConfigurationError, UsageError
from penstock.messaging.message import Outgoing


def test_a_handler_with_a_too_long_name_is_refused_at_its_declaration() -> None:
    app = App()
    with pytest.raises(
        UsageError, match=r"has 257 characters, and at most 256 are allowed; give a shorter one with name="
    ):

        @app.handler("orders", name="n" * 257)
        def handle(message: object) -> None: ...


def test_a_queue_with_a_too_long_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"has a name of 1,025 characters: 1,024 is the most"):
        MemoryBroker().send("q" * 1_025, [Outgoing(body=b"")])
