"""Record the claims, attempts and batches of every pipeline in a SQL database.

`records` holds the values that go in and come out, and imports nothing heavy. `Ledger` is imported on first use because
it needs SQLAlchemy.
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
