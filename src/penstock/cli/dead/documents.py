"""Dead letters as JSON documents and as text."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.cli.output import moment, print_table, printable
from penstock.dead_letters.filters import origins_of
from penstock.messaging.death import (
    DEATH_ATTRIBUTE,
    EARLIER_DEATHS_ATTRIBUTE,
    SET_ASIDE_ATTRIBUTE,
    earlier_deaths_of,
    set_aside_reason,
)
from penstock.messaging.replay import replays_so_far
from penstock.messaging.wording import counted

if TYPE_CHECKING:
    from penstock.dead_letters.groups import FailureGroup
    from penstock.dead_letters.reader import DeadLetteredMessage
    from penstock.operations.dead_letters.selection import DeadLetterPlan
    from penstock.operations.inspection import FailedObjectRow

BODY_SHOWN = 120


def dead_letter_document(dead_letter: "DeadLetteredMessage") -> dict[str, Any]:
    """Return all facts about a dead letter. Its original message id is the one in the log."""
    message, death = dead_letter.message, dead_letter.death
    shown = {SET_ASIDE_ATTRIBUTE, EARLIER_DEATHS_ATTRIBUTE} | ({DEATH_ATTRIBUTE} if death is not None else set())
    return {
        "kind": "message",
        "message_id": message.id,
        "queue": dead_letter.queue,
        "dead_at": message.enqueued_at,
        "reason": death.reason if death else None,
        "exception": death.exception if death else None,
        "attempts": death.attempts if death else None,
        "worker": death.worker if death else None,
        "original_message_id": death.message_id if death else None,
        "original_queue": death.queue if death else next(iter(origins_of(dead_letter)), None),
        "enqueued_at": death.enqueued_at if death else None,
        "first_failed_at": death.first_failed_at if death else None,
        "last_failed_at": death.last_failed_at if death else None,
        "traceback": death.traceback if death else None,
        "handler": death.handler if death else None,
        "fingerprint": death.fingerprint if death else None,
        "poison": death.poison if death else None,
        "tries": [asdict(attempt) for attempt in death.tries] if death else [],
        "earlier_deaths": [asdict(death_before) for death_before in earlier_deaths_of(message.attributes)],
        "replays": replays_so_far(message.attributes),
        "set_aside": set_aside_reason(message.attributes),
        "group": message.group,
        "attributes": {name: text_of(value) for name, value in message.attributes.items() if name not in shown},
        "body": text_of(message.body),
    }


def object_document(dead: "FailedObjectRow") -> dict[str, Any]:
    """Return all facts about a failed object."""
    return {
        "kind": "object",
        "object": dead.row.uri,
        "pipeline": dead.pipeline,
        "dead_at": dead.row.ended_at,
        "reason": dead.row.reason,
        "attempts": dead.row.attempts,
        "replaced": dead.replaced,
    }


def group_document(group: "FailureGroup") -> dict[str, Any]:
    """Return the facts about a group of dead letters with one error."""
    return asdict(group)


def plan_document(plan: "DeadLetterPlan") -> dict[str, Any]:
    """Return a plan as a document."""
    return {
        "dead_letters": plan.dead_letters,
        "left_without_queue": plan.without_origin,
        "queues": [{"from": source, "to": to, "dead_letters": count} for (source, to), count in plan.by_queue.items()],
        "groups": [group_document(group) for group in plan.groups],
        "others": plan.others,
    }


def print_dead_letter(dead_letter: "DeadLetteredMessage") -> None:
    """Print a dead letter as an entry of a list."""
    message, death = dead_letter.message, dead_letter.death
    attempts = f", after {counted(death.attempts, 'attempt')} by {death.worker}" if death is not None else ""
    print(printable(f"{message.id}  dead since {moment(message.enqueued_at)} in {dead_letter.queue}{attempts}"))
    if death is not None:
        failed = f", sent {moment(death.enqueued_at)}, last failed {moment(death.last_failed_at)}"
        print(f"    {printable(f'was {death.message_id} in {death.queue}{failed}')}")
    reason = death.reason if death is not None else "no reason was recorded"
    raised = (death.exception if death is not None else None) or ""
    for line in (reason, "" if raised in reason else raised, _shown(message.body)):
        if line:
            print(f"    {printable(line)}")


def print_object(dead: "FailedObjectRow", *, pipeline: str) -> None:
    """Print a failed object as an entry of a list."""
    attempts = counted(dead.row.attempts, "attempt")
    replaced = "; a later version of it was processed" if dead.replaced else ""
    print(printable(f"{dead.row.uri}  dead since {moment(dead.row.ended_at)}{pipeline}, after {attempts}{replaced}"))
    print(f"    {printable(dead.row.reason or 'no reason was recorded')}")


def print_groups(groups: "Sequence[FailureGroup]", *, empty: str = "") -> None:
    """Print a row per group if a program reads the output; else a paragraph, so that a narrow terminal breaks no name
    or id.

    Its second line is a reason, if that is not the name of the group.
    """
    rows = [
        (
            f"{group.count:,}",
            group.key,
            "" if group.reason == group.key else group.reason,
            moment(group.first_at),
            moment(group.last_at),
            ", ".join(group.queues),
            group.example_id,
        )
        for group in groups
    ]
    if not rows or not sys.stdout.isatty():
        print_table(("dead letters", "error", "such as", "first", "last", "queues", "example"), rows, empty=empty)
        return
    for count, key, reason, first, last, queues, example in rows:
        print(f"{count:>9}  {printable(key)}")
        when = first if first == last else f"{first} to {last}"
        for line in (reason and f"such as: {reason}", f"{when} in {queues}", f"for example {example}"):
            if line:
                print(f"{'':>9}  {printable(line)}")


def text_of(value: str | bytes) -> str:
    """Return bytes as text; invalid bytes are escaped."""
    return value if isinstance(value, str) else value.decode("utf-8", errors="backslashreplace")


def _shown(body: bytes) -> str:
    text = text_of(body)
    return text if len(text) <= BODY_SHOWN else text[: BODY_SHOWN - 1] + "…"
