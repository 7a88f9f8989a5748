"""Findings about SQS queues: do they exist, and do their limits leave room for Penstock's attempts and replays?

Pure functions from facts to findings.
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from penstock.operations.doctor.findings import FindingLevel

if TYPE_CHECKING:
    from penstock.brokers.sqs.facts import QueueFacts

DEPLOYS_MIN = 3  # receives in addition to the attempts: each stop that releases a message costs one
LOOKS_MIN = 100  # receives of a dead letter: one that waits 14 days is inspected every 12 hours and at each deployment
_SEND = "sqs:sendmessage"
_S3 = "s3.amazonaws.com"
_AWS_KEY = "alias/aws/sqs"  # AWS's own key, whose policy cannot be changed
_PARTITION = re.compile("^arn:[^:]*:")
_SOURCE_TESTS = ("ArnEquals", "ArnLike", "StringEquals", "StringLike")
_UNTRIED = "receiving, extending and deleting were not tried, since that would take messages from workers"
_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


def queue(facts: "QueueFacts", *, lease_seconds: float, announces: bool) -> tuple[FindingLevel, str]:
    """Check the queue's own attributes. ``announces``: S3 sends to it."""
    words = (
        f"{facts.name}: its own visibility timeout is {_span(facts.visibility_seconds)}, workers ask for "
        f"{_span(lease_seconds)} with each receive; kept for {_span(facts.retention_seconds)}, {_locked(facts)}; "
        f"{_UNTRIED}"
    )
    if facts.is_fifo and announces:
        return FindingLevel.FAILED, f"{words}; it is a FIFO queue, to which S3 sends nothing: use a standard one"
    if announces and facts.kms_key is not None and facts.kms_key.endswith(_AWS_KEY):
        return (
            FindingLevel.FAILED,
            f"{words}; S3 may not use AWS's own key, and its notifications vanish: use SSE-SQS, or a key of your own",
        )
    if announces and facts.kms_key is not None:
        return (
            FindingLevel.WARNING,
            (
                f"{words}; see to it that the key's policy lets {_S3} do kms:GenerateDataKey* and kms:Decrypt, else "
                "its notifications vanish"
            ),
        )
    if facts.is_fifo:
        return FindingLevel.OK, f"{words}; FIFO: in order within a group, one message of a group at a time, no delays"
    return FindingLevel.OK, words


def dead_letters(
    facts: "QueueFacts", letters: "QueueFacts | None", *, attempts_max: int, why: str = ""
) -> tuple[FindingLevel, str]:
    """Check the DLQ and the number of receives before a message goes there.

    ``letters`` None: there is none, for ``why``.
    """
    if letters is None:
        return FindingLevel.FAILED, f"{facts.name}: its dead letters have no place to go: {why}"
    if facts.receives_max is None:
        return (
            FindingLevel.WARNING,
            (
                f"{facts.name}: Penstock sends dead letters to {letters.arn}, and there is no redrive policy: a "
                "message that kills its workers comes back until it is past its retention"
            ),
        )
    needed = attempts_max + DEPLOYS_MIN
    words = f"{facts.name}: to {letters.arn} after {facts.receives_max:,} receives"
    sums = f"max_attempts {attempts_max} and {DEPLOYS_MIN} for deploys, each of which costs a receive, make {needed}"
    if facts.receives_max < attempts_max:
        return (
            FindingLevel.FAILED,
            f"{words}, before its attempts are used up; {sums}: set maxReceiveCount to that or more",
        )
    if facts.receives_max < needed:
        return (
            FindingLevel.WARNING,
            f"{words}, and a few deploys use that up; {sums}: set maxReceiveCount to that or more",
        )
    if letters.receives_max is not None and letters.receives_max < facts.receives_max + LOOKS_MIN:
        looks = max(letters.receives_max - facts.receives_max, 0)
        left = f"only {looks} looks are left" if looks else "the first look hands it on"
        return (
            FindingLevel.WARNING,
            (
                f"{words}, and from there on after {letters.receives_max:,}: the count goes with a message, so that "
                f"{left}, and it lands where nothing brings it back; set that queue's own maxReceiveCount to 1,000"
            ),
        )
    if letters.retention_seconds <= facts.retention_seconds:
        return (
            FindingLevel.WARNING,
            (
                f"{words}, where they are kept for {_span(letters.retention_seconds)}, no longer than in the queue: "
                "what SQS moves there keeps its age, so it may be gone before anybody looks; set 14 days"
            ),
        )
    return FindingLevel.OK, f"{words} ({sums}), kept there for {_span(letters.retention_seconds)}"


def second_tier(
    facts: "QueueFacts", letters: "QueueFacts", second: "QueueFacts | None", *, why: str = ""
) -> tuple[FindingLevel, str]:
    """Check the final DLQ of a replayed queue. ``second`` None: there is none, for ``why``."""
    if second is None:
        return (
            FindingLevel.FAILED,
            f"{letters.name}: dead letters of {facts.name} are replayed, and what dies again has no place to go: {why}",
        )
    words = f"{letters.name}: what is replayed no more goes to {second.arn}"
    if second.arn in (facts.arn, letters.arn):
        return (
            FindingLevel.FAILED,
            f"{words}, and so goes in a circle: give it a redrive policy with a queue for people",
        )
    if second.is_fifo != letters.is_fifo:
        kinds = ("a FIFO queue", "a standard queue") if letters.is_fifo else ("a standard queue", "a FIFO queue")
        return FindingLevel.FAILED, f"{words}: of {kinds[0]} to {kinds[1]}, which SQS does not do; make both alike"
    if second.retention_seconds <= facts.retention_seconds:
        return (
            FindingLevel.WARNING,
            (
                f"{words}, where they are kept for {_span(second.retention_seconds)}, no longer than in {facts.name}: "
                "they may be gone before anybody looks; set 14 days"
            ),
        )
    return FindingLevel.OK, f"{words}, kept there for {_span(second.retention_seconds)}"


def bucket_may_send(facts: "QueueFacts", bucket: str) -> tuple[FindingLevel, str]:
    """Check that the queue's policy lets the bucket send, and no other bucket."""
    found = [one for one in _statements(facts.policy) if _covers(one, facts.arn)]
    for one in found:
        if one.get("Effect") == "Deny" and not one.get("Condition"):
            return FindingLevel.FAILED, f"{facts.name}: a statement of its policy denies {_S3} to send; take it out"
    allowed = [one for one in found if one.get("Effect") == "Allow"]
    named = [one for one in allowed if any(fnmatchcase(f"arn:aws:s3:::{bucket}", each) for each in _sources(one))]
    if named:
        return FindingLevel.OK, f"{facts.name}: its policy lets {bucket} send"
    if any(not _sources(one) for one in allowed):
        return (
            FindingLevel.WARNING,
            f"{facts.name}: its policy lets any bucket send, of any account: add a condition on aws:SourceArn",
        )
    return (
        FindingLevel.FAILED,
        f"{facts.name}: its policy does not let {_S3} send for {bucket}; `penstock init --aws` writes one that does",
    )


def _statements(policy: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [one for one in _several(policy.get("Statement")) if isinstance(one, Mapping)]


def _covers(statement: Mapping[str, Any], arn: str) -> bool:
    """Return True if the statement is about S3, sending, and this queue."""
    principal = statement.get("Principal")
    who = _several(principal.get("Service")) if isinstance(principal, Mapping) else _several(principal)
    if isinstance(principal, Mapping) and "*" in _several(principal.get("AWS")):
        who = ["*"]
    actions = [str(each).lower() for each in _several(statement.get("Action"))]
    return (
        bool({_S3, "*"} & set(map(str, who)))
        and any(fnmatchcase(_SEND, each) for each in actions)
        and any(fnmatchcase(arn, str(each)) for each in _several(statement.get("Resource", "*")))
    )


def _sources(statement: Mapping[str, Any]) -> Sequence[str]:
    """Return the patterns of the condition on the source ARN, in the standard partition, if any."""
    conditions = statement.get("Condition", {})
    return [
        _PARTITION.sub("arn:aws:", str(each))
        for test in _SOURCE_TESTS
        for key, values in conditions.get(test, {}).items()
        if key.lower() == "aws:sourcearn"
        for each in _several(values)
    ]


def _several(value: Any) -> Sequence[Any]:
    """Return a list: IAM writes a list of one element without brackets."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _locked(facts: "QueueFacts") -> str:
    if facts.kms_key is not None:
        return f"encrypted by the KMS key {facts.kms_key}"
    return "encrypted by a key of SQS" if facts.is_encrypted else "not encrypted"


def _span(seconds: float) -> str:
    for size, name in _UNITS:
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return f"{count} {name}" if count == 1 else f"{count} {name}s"
    return f"{seconds:g} s"
