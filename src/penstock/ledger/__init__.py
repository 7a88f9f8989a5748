"""What we did: the claims, attempts and batches of every pipeline, in a SQL database.

`records` holds the values that go in and come out and imports nothing heavy; `Ledger` is loaded at first use, because
it brings SQLAlchemy with it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger

__all__ = ["Ledger"]


def __getattr__(name: str) -> object:
    if name == "Ledger":
        from penstock.ledger.ledger import Ledger

        return Ledger
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
