"""The invariants of every state of the model, and of finished ones."""

from tests.simulation.model import BOTH, NO_ATTEMPT, PROCESSED, Mutation, State, visible


def violation(s: State, m: Mutation) -> str | None:
    """Return the first invariant that this state breaks."""
    shown = tuple(visible(s, o) for o in (0, 1))
    if max(shown) > 1:
        return "rows of an object are visible twice"
    if s.ledger != "faithful":
        return None  # a ledger that forgot a commit is outside the other invariants
    for a in s.table.live:
        if not s.attempts[a].file:
            return "the table names a missing file"
        if s.attempts[a].state != "committed":
            return "the table names a file of an attempt that is not committed"
    return _ledger_violation(s, shown, m)


def _ledger_violation(s: State, shown: tuple[int, ...], m: Mutation) -> str | None:
    position = s.table.position
    for o in (0, 1):
        named = [seq for seq, a in enumerate(s.batches, 1) if a != NO_ATTEMPT and s.attempts[a].content >> o & 1]
        if len(named) != (s.owners[o] == PROCESSED):
            return "an object is not in exactly the batch it was processed in"
        if s.acked >> o & 1 and not named:
            return "an object is acked and its rows are not committed"
        if shown[o] != any(seq <= position for seq in named):
            return "the table at a position is not the sum of the batches up to it"
    for seq, a in enumerate(s.batches, 1):
        if a == NO_ATTEMPT and Mutation.GAPS_SKIPPED not in m and _gap_forever(s, seq):
            return "a drawn sequence is never committed: later batches wait forever"
        if a != NO_ATTEMPT and seq > position and not s.attempts[a].file:
            return "a file of a committed batch was deleted before it was published"
    return None


def _gap_forever(s: State, seq: int) -> bool:
    later = any(a != NO_ATTEMPT for a in s.batches[seq:])
    expected = any(d.phase == "transaction" and d.seq == seq for d in s.drivers) or any(q == seq for _, q in s.sending)
    return later and not expected


def finished(s: State) -> bool:
    """Return True if every object is acked and visible once, all processes are idle, and gc has nothing left to do."""
    return (
        s.acked == BOTH
        and s.owners == (PROCESSED, PROCESSED)
        and s.table.position == len(s.batches)
        and not s.sending
        and all(d.attempt == NO_ATTEMPT for d in s.drivers)
        and all(p.phase in ("idle", "absent") for p in s.publishers)
        and all(it.state != "abandoned" for it in s.attempts)
        and all(visible(s, o) == 1 for o in (0, 1))
    )
