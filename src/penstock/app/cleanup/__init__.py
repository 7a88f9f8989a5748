"""What becomes of a pipeline's objects at their source once their rows are published.

``from penstock import cleanup``, then ``ObjectSource(..., cleanup=cleanup.Delete(after="30 days"))``.
"""

from penstock.app.cleanup.declaration import Cleanup, Delete, Keep, Move, Tag

__all__ = ["Cleanup", "Delete", "Keep", "Move", "Tag"]
