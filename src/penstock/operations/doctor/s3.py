"""Findings about buckets: are they readable, and do their notifications reach the queue?

Pure functions from facts to findings.
"""

from typing import TYPE_CHECKING

from penstock.operations.doctor.findings import FindingLevel
from penstock.storage.address import S3Address

if TYPE_CHECKING:
    from penstock.objects.s3_facts import NotificationConfiguration, NotificationRule, SourceFacts

_CREATED = "s3:ObjectCreated:"
_WAYS = ("Put", "Post", "Copy", "CompleteMultipartUpload")  # the event types of new objects
_VERSIONED = {
    "Enabled": "versions are kept, so each is read as it was announced",
    "Suspended": "versions are kept no more: what is overwritten before it is read is superseded",
    "never": "no versions are kept: what is overwritten before it is read is superseded",
    None: "whether versions are kept may not be seen (s3:GetBucketVersioning), and need not be",
}


def source(address: S3Address, facts: "SourceFacts") -> tuple[FindingLevel, str]:
    """Report the access, which was tried while the facts were collected, and the bucket's versioning."""
    tried = "nothing there yet to try reading" if facts.tried_key is None else "listed, and an object asked for"
    return FindingLevel.OK, f"{address}: {tried}; {_VERSIONED.get(facts.versioning, facts.versioning)}"


def notices(
    address: S3Address, found: "NotificationConfiguration | None", *, queue: str, arn: str
) -> tuple[FindingLevel, str]:
    """Check that the bucket sends notifications for all new objects, of every event type, to this queue."""
    if found is None:
        return (
            FindingLevel.WARNING,
            (
                f"{address}: how its bucket announces objects may not be seen (s3:GetBucketNotification); see to it "
                f"that new objects are announced in {queue}"
            ),
        )
    direct = [rule for rule in found.rules if rule.arn == arn and any(map(_is_creation, rule.events))]
    if not direct:
        return _indirect(address, found, queue)
    whole = [rule for rule in direct if address.folder.startswith(rule.prefix) and not rule.suffix]
    ways = [way for way in _WAYS if not any(_tells_of(rule, way) for rule in whole)]
    if not whole:
        rules = ", ".join(f"{rule.prefix}*{rule.suffix}" for rule in direct)
        if not any(_meet(rule, address) for rule in direct):
            return (
                FindingLevel.FAILED,
                (
                    f"{address}: its bucket announces {rules} in {queue}, and nothing of this; let the filter be "
                    f"{address.folder or 'empty'}"
                ),
            )
        return (
            FindingLevel.WARNING,
            f"{address}: its bucket announces only {rules} in {queue}; an ingest or reconcile finds the others",
        )
    if ways:
        return (
            FindingLevel.WARNING,
            f"{address}: {queue} does not hear of objects made by {', '.join(ways)}; let the event be {_CREATED}*",
        )
    return FindingLevel.OK, f"{address}: its bucket announces new objects in {queue}"


def _indirect(address: S3Address, found: "NotificationConfiguration", queue: str) -> tuple[FindingLevel, str]:
    topics = [rule.arn for rule in found.rules if ":sns:" in rule.arn]
    ways = [*(["EventBridge"] if found.to_event_bridge else []), *topics]
    if not ways:
        return (
            FindingLevel.FAILED,
            f"{address}: its bucket announces nothing in {queue}; `penstock init --aws` writes a notification",
        )
    return (
        FindingLevel.WARNING,
        f"{address}: its bucket announces objects by {', '.join(ways)}; whether that leads to {queue} is not looked at",
    )


def _is_creation(event: str) -> bool:
    return event.startswith(_CREATED)


def _tells_of(rule: "NotificationRule", way: str) -> bool:
    return any(event in (f"{_CREATED}*", f"{_CREATED}{way}") for event in rule.events)


def _meet(rule: "NotificationRule", address: S3Address) -> bool:
    """Return True if the rule matches some key below the address."""
    return rule.prefix.startswith(address.folder) or address.folder.startswith(rule.prefix)
