"""Check SQS queues: that they exist, and that their limits leave room for Penstock's attempts and replays.

Pure functions from facts to findings.
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from penstock.messaging.wording import counted, worded
from penstock.operations.doctor.findings import FindingLevel

if TYPE_CHECKING:
    from penstock.brokers.sqs.facts import QueueFacts

DEPLOYS_MIN = 3  # receives in addition to the attempts: each stop that releases a message costs one
RECEIVES_LEFT_MIN = (
    100  # receives of a dead letter: one that waits 14 days is inspected every 12 hours and at each deployment
)
_SEND = "sqs:sendmessage"
_S3 = "s3.amazonaws.com"
_AWS_KEY = "alias/aws/sqs"  # AWS's own key, whose policy cannot be changed
_PARTITION = re.compile("^arn:[^:]*:")
_SOURCE_TESTS = ("ArnEquals", "ArnLike", "StringEquals", "StringLike")
_UNTRIED = "receiving, extending and deleting were not tried, since that would hide messages from workers"
_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


def queue(facts: "QueueFacts", *, lease_seconds: float, announces: bool) -> tuple[FindingLevel, str]:
    """Check the queue's own attributes. ``announces``: S3 sends to it."""
    text = (
        f"{facts.name}: its visibility timeout is {_span(facts.visibility_seconds)}, workers request "
        f"{_span(lease_seconds)} with each receive; messages are kept for {_span(facts.retention_seconds)}, "
        f"{_locked(facts)}; {_UNTRIED}"
    )
    if facts.is_fifo and announces:
        return FindingLevel.FAILED, f"{text}; it is a FIFO queue, and S3 sends only to standard queues: use one"
    if announces and facts.kms_key is not None and facts.kms_key.endswith(_AWS_KEY):
        return (
            FindingLevel.FAILED,
            f"{text}; S3 cannot use the AWS managed key, so its notifications are lost: use SSE-SQS or your own key",
        )
    if announces and facts.kms_key is not None:
        return (
            FindingLevel.WARNING,
            (
                f"{text}; make sure that the key's policy allows {_S3} kms:GenerateDataKey* and kms:Decrypt, or "
                "its notifications are lost"
            ),
        )
    if facts.is_fifo:
        return FindingLevel.OK, f"{text}; FIFO: in order within a group, one message of a group at a time, no delays"
    return FindingLevel.OK, text


def check_dlq(
    facts: "QueueFacts", dlq: "QueueFacts | None", *, attempts_max: int, why: str = ""
) -> tuple[FindingLevel, str]:
    """Check the DLQ and the number of receives before a message goes there.

    ``dlq`` None: there is none, for ``why``.
    """
    if dlq is None:
        return FindingLevel.FAILED, f"{facts.name}: it has no dead-letter queue: {why}"
    if facts.receives_max is None:
        return (
            FindingLevel.WARNING,
            (
                f"{facts.name}: Penstock sends dead letters to {dlq.arn}, but there is no redrive policy: a "
                "message that kills its workers is redelivered until it expires"
            ),
        )
    needed = attempts_max + DEPLOYS_MIN
    text = f"{facts.name}: to {dlq.arn} after {counted(facts.receives_max, 'receive')}"
    needed_text = (
        f"max_attempts {attempts_max} plus {DEPLOYS_MIN} for deployments, which cost a receive each, is {needed}"
    )
    if facts.receives_max < attempts_max:
        return (
            FindingLevel.FAILED,
            f"{text}, before max_attempts is reached; {needed_text}: set maxReceiveCount to at least that",
        )
    if facts.receives_max < needed:
        return (
            FindingLevel.WARNING,
            f"{text}, which a few deployments use up; {needed_text}: set maxReceiveCount to at least that",
        )
    if dlq.receives_max is not None and dlq.receives_max < facts.receives_max + RECEIVES_LEFT_MIN:
        receives = max(dlq.receives_max - facts.receives_max, 0)
        left = (
            worded(receives, "only {} receive is left", "only {} receives are left")
            if receives
            else "the first receive moves it on"
        )
        return (
            FindingLevel.WARNING,
            (
                f"{text}, and from there on after {dlq.receives_max:,}: a message keeps its count, so {left}, and "
                "it ends in a queue that is not replayed; set the DLQ's own maxReceiveCount to 1,000"
            ),
        )
    if dlq.retention_seconds <= facts.retention_seconds:
        return (
            FindingLevel.WARNING,
            (
                f"{text}, where they are kept for {_span(dlq.retention_seconds)}, no longer than in the queue: "
                "messages that SQS moves there keep their age, so they may expire unseen; set 14 days"
            ),
        )
    return FindingLevel.OK, f"{text} ({needed_text}), kept there for {_span(dlq.retention_seconds)}"


def check_final_dlq(
    facts: "QueueFacts", dlq: "QueueFacts", final_dlq: "QueueFacts | None", *, why: str = ""
) -> tuple[FindingLevel, str]:
    """Check the final DLQ of a replayed queue. ``final_dlq`` None: there is none, for ``why``."""
    if final_dlq is None:
        return (
            FindingLevel.FAILED,
            f"{dlq.name}: dead letters of {facts.name} are replayed, but there is no final DLQ: {why}",
        )
    text = f"{dlq.name}: messages that are not replayed again go to {final_dlq.arn}"
    if final_dlq.arn in (facts.arn, dlq.arn):
        return (
            FindingLevel.FAILED,
            f"{text}, which is a cycle: give it a redrive policy to a queue that people watch",
        )
    if final_dlq.is_fifo != dlq.is_fifo:
        kinds = ("a FIFO queue", "a standard queue") if dlq.is_fifo else ("a standard queue", "a FIFO queue")
        return (
            FindingLevel.FAILED,
            f"{text}: from {kinds[0]} to {kinds[1]}, which SQS does not support; make both the same kind",
        )
    if final_dlq.retention_seconds <= facts.retention_seconds:
        return (
            FindingLevel.WARNING,
            (
                f"{text}, kept there for {_span(final_dlq.retention_seconds)}, no longer than in {facts.name}: "
                "they may expire unseen; set 14 days"
            ),
        )
    return FindingLevel.OK, f"{text}, kept there for {_span(final_dlq.retention_seconds)}"


def bucket_may_send(facts: "QueueFacts", bucket: str) -> tuple[FindingLevel, str]:
    """Check that the queue's policy lets the bucket send, and no other bucket."""
    found = [statement for statement in _statements(facts.policy) if _covers(statement, facts.arn)]
    for statement in found:
        if statement.get("Effect") == "Deny" and not statement.get("Condition"):
            return FindingLevel.FAILED, f"{facts.name}: a statement of its policy denies {_S3} to send; remove it"
    allowed = [statement for statement in found if statement.get("Effect") == "Allow"]
    named = [
        statement
        for statement in allowed
        if any(fnmatchcase(f"arn:aws:s3:::{bucket}", statement) for statement in _sources(statement))
    ]
    if named:
        return FindingLevel.OK, f"{facts.name}: its policy allows {bucket} to send"
    if any(not _sources(statement) for statement in allowed):
        return (
            FindingLevel.WARNING,
            f"{facts.name}: its policy allows any bucket of any account to send: add a condition on aws:SourceArn",
        )
    return (
        FindingLevel.FAILED,
        f"{facts.name}: its policy does not allow {_S3} to send for {bucket}; `penstock init --aws` writes a policy",
    )


def _statements(policy: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [statement for statement in _several(policy.get("Statement")) if isinstance(statement, Mapping)]


def _covers(statement: Mapping[str, Any], arn: str) -> bool:
    """Return True if the statement is about S3, sending, and this queue."""
    principal = statement.get("Principal")
    principals = _several(principal.get("Service")) if isinstance(principal, Mapping) else _several(principal)
    if isinstance(principal, Mapping) and "*" in _several(principal.get("AWS")):
        principals = ["*"]
    actions = [str(action).lower() for action in _several(statement.get("Action"))]
    return (
        bool({_S3, "*"} & set(map(str, principals)))
        and any(fnmatchcase(_SEND, action) for action in actions)
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
        return f"encrypted with the KMS key {facts.kms_key}"
    return "encrypted with a key of SQS" if facts.is_encrypted else "not encrypted"


def _span(seconds: float) -> str:
    for size, name in _UNITS:
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return counted(count, name)
    return f"{seconds:g} s"
