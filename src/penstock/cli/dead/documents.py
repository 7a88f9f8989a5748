"""Dead letters as JSON documents, and in words."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.cli.output import counted, moment, print_table, printable

if TYPE_CHECKING:
    from penstock.dead_letters.groups import FailureGroup
    from penstock.dead_letters.letters import DeadLetteredMessage
    from penstock.operations.dead_letters.letters import DeadLetterPlan
    from penstock.operations.inspection import GivenUpObject

BODY_SHOWN = 120


def letter_document(letter: "DeadLetteredMessage") -> dict[str, Any]:
    """Everything there is; what the log tells of is the message's original id."""
    from penstock.dead_letters.filters import origins_of
    from penstock.messaging.death import DEATH_ATTRIBUTE, PAST_ATTRIBUTE, SET_ASIDE_ATTRIBUTE, past_of, set_aside_reason
    from penstock.messaging.replay import replays_so_far

    message, death = letter.message, letter.death
    told = {SET_ASIDE_ATTRIBUTE, PAST_ATTRIBUTE} | ({DEATH_ATTRIBUTE} if death is not None else set())
    return {
        "kind": "message",
        "message_id": message.id,
        "queue": letter.queue,
        "dead_at": message.enqueued_at,
        "reason": death.reason if death else None,
        "exception": death.exception if death else None,
        "attempts": death.attempts if death else None,
        "worker": death.worker if death else None,
        "original_message_id": death.message_id if death else None,
        "original_queue": death.queue if death else next(iter(origins_of(letter)), None),
        "enqueued_at": death.enqueued_at if death else None,
        "first_failed_at": death.first_failed_at if death else None,
        "last_failed_at": death.last_failed_at if death else None,
        "traceback": death.traceback if death else None,
        "handler": death.handler if death else None,
        "fingerprint": death.fingerprint if death else None,
        "poison": death.poison if death else None,
        "tries": [asdict(each) for each in death.tries] if death else [],
        "past": [asdict(each) for each in past_of(message.attributes)],
        "replays": replays_so_far(message.attributes),
        "set_aside": set_aside_reason(message.attributes),
        "group": message.group,
        "attributes": {name: text_of(value) for name, value in message.attributes.items() if name not in told},
        "body": text_of(message.body),
    }


def object_document(dead: "GivenUpObject") -> dict[str, Any]:
    """A dead object."""
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
    """Letters of one error."""
    return asdict(group)


def plan_document(plan: "DeadLetterPlan") -> dict[str, Any]:
    """What would be done."""
    return {
        "letters": plan.letters,
        "left_without_queue": plan.homeless,
        "queues": [{"from": source, "to": to, "letters": count} for (source, to), count in plan.by_queue.items()],
        "groups": [group_document(group) for group in plan.groups],
        "others": plan.others,
    }


def print_letter(letter: "DeadLetteredMessage") -> None:
    """In a list."""
    message, death = letter.message, letter.death
    attempts = f", after {counted(death.attempts, 'attempt')} by {death.worker}" if death is not None else ""
    print(printable(f"{message.id}  dead since {moment(message.enqueued_at)} in {letter.queue}{attempts}"))
    if death is not None:
        failed = f", sent {moment(death.enqueued_at)}, last failed {moment(death.last_failed_at)}"
        print(f"    {printable(f'was {death.message_id} in {death.queue}{failed}')}")
    reason = death.reason if death is not None else "no reason was recorded"
    raised = (death.exception if death is not None else None) or ""
    for line in (reason, "" if raised in reason else raised, _shown(message.body)):
        if line:
            print(f"    {printable(line)}")


def print_object(dead: "GivenUpObject", *, whose: str) -> None:
    """In a list."""
    attempts = counted(dead.row.attempts, "attempt")
    replaced = "; a later version of it was processed" if dead.replaced else ""
    print(printable(f"{dead.row.uri}  dead since {moment(dead.row.ended_at)}{whose}, after {attempts}{replaced}"))
    print(f"    {printable(dead.row.reason or 'no reason was recorded')}")


def print_groups(groups: "Sequence[FailureGroup]", *, empty: str = "") -> None:
    """A row each for programs; for people a paragraph, so that no name or id is broken by a narrow terminal. The second
    line is a reason, where the group goes by another name."""
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
        print_table(("letters", "error", "such as", "first", "last", "queues", "example"), rows, empty=empty)
        return
    for count, key, reason, first, last, queues, example in rows:
        print(f"{count:>9}  {printable(key)}")
        when = first if first == last else f"{first} to {last}"
        for line in (reason and f"such as: {reason}", f"{when} in {queues}", f"for example {example}"):
            if line:
                print(f"{'':>9}  {printable(line)}")


def text_of(value: str | bytes) -> str:
    """Text, with what is none escaped."""
    return value if isinstance(value, str) else value.decode("utf-8", errors="backslashreplace")


def _shown(body: bytes) -> str:
    text = text_of(body)
    return text if len(text) <= BODY_SHOWN else text[: BODY_SHOWN - 1] + "…"
