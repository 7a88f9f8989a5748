"""Check buckets: that they are readable, and that their notifications reach the queue.

Pure functions from facts to findings.
"""

from typing import TYPE_CHECKING

from penstock.operations.doctor.findings import FindingLevel
from penstock.storage.address import S3Address

if TYPE_CHECKING:
    from penstock.objects.s3_facts import NotificationConfiguration, NotificationRule, SourceFacts

_CREATED = "s3:ObjectCreated:"
_EVENT_TYPES = ("Put", "Post", "Copy", "CompleteMultipartUpload")  # the event types of new objects
_VERSIONED = {
    "Enabled": "versioning is on, so each version is read as it was announced",
    "Suspended": "versioning is suspended: an object that is overwritten before it is read is superseded",
    "never": "versioning is off: an object that is overwritten before it is read is superseded",
    None: "versioning is unknown without s3:GetBucketVersioning, and need not be known",
}


def source(address: S3Address, facts: "SourceFacts") -> tuple[FindingLevel, str]:
    """Report the access, which was tried while the facts were collected, and the bucket's versioning."""
    tried = "there is no object yet to read" if facts.tried_key is None else "listed, and an object was requested"
    return FindingLevel.OK, f"{address}: {tried}; {_VERSIONED.get(facts.versioning, facts.versioning)}"


def notifications(
    address: S3Address, found: "NotificationConfiguration | None", *, queue: str, arn: str
) -> tuple[FindingLevel, str]:
    """Check that the bucket sends notifications for all new objects, of every event type, to this queue."""
    if found is None:
        return (
            FindingLevel.WARNING,
            (
                f"{address}: the notifications of its bucket are unknown without s3:GetBucketNotification; make sure "
                f"that new objects are announced in {queue}"
            ),
        )
    direct = [rule for rule in found.rules if rule.arn == arn and any(map(_is_creation, rule.events))]
    if not direct:
        return _indirect(address, found, queue)
    whole = [rule for rule in direct if address.folder.startswith(rule.prefix) and not rule.suffix]
    missing = [event_type for event_type in _EVENT_TYPES if not any(_covers(rule, event_type) for rule in whole)]
    if not whole:
        rules = ", ".join(f"{rule.prefix}*{rule.suffix}" for rule in direct)
        if not any(_overlap(rule, address) for rule in direct):
            return (
                FindingLevel.FAILED,
                (
                    f"{address}: its bucket announces {rules} in {queue}, but nothing below this address; set the "
                    f"filter to {address.folder or 'empty'}"
                ),
            )
        return (
            FindingLevel.WARNING,
            f"{address}: its bucket announces only {rules} in {queue}; an ingest or reconcile finds the others",
        )
    if missing:
        return (
            FindingLevel.WARNING,
            f"{address}: {queue} is not notified of objects created by {', '.join(missing)}; use the event {_CREATED}*",
        )
    return FindingLevel.OK, f"{address}: its bucket announces new objects in {queue}"


def _indirect(address: S3Address, found: "NotificationConfiguration", queue: str) -> tuple[FindingLevel, str]:
    topics = [rule.arn for rule in found.rules if ":sns:" in rule.arn]
    missing = [*(["EventBridge"] if found.to_event_bridge else []), *topics]
    if not missing:
        return (
            FindingLevel.FAILED,
            f"{address}: its bucket announces nothing in {queue}; `penstock init --aws` writes a notification",
        )
    return (
        FindingLevel.WARNING,
        f"{address}: its bucket announces objects by {', '.join(missing)}; whether they reach {queue} was not checked",
    )


def _is_creation(event: str) -> bool:
    return event.startswith(_CREATED)


def _covers(rule: "NotificationRule", event_type: str) -> bool:
    return any(event in (f"{_CREATED}*", f"{_CREATED}{event_type}") for event in rule.events)


def _overlap(rule: "NotificationRule", address: S3Address) -> bool:
    """Return True if the rule matches some key below the address."""
    return rule.prefix.startswith(address.folder) or address.folder.startswith(rule.prefix)
