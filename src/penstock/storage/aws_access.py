"""What `penstock doctor` says of how this process comes to AWS: never the credentials themselves."""

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from penstock.storage.aws import Aws


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Which of boto3's providers found credentials: env, shared-credentials-file, container-role, iam-role, ..."""

    provider: str
    region: str | None  # None: none is set


def access(aws: Aws) -> Access:
    """Looked up on this machine, or at its metadata service. Raises `ConfigurationError`."""
    return Access(provider=aws.credentials().method, region=aws.session().region_name)


def clock_ahead_seconds(answer: Any, *, now: float) -> float | None:
    """AWS's clock less ours, by an answer's date, which has whole seconds; None where it has none."""
    told = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return None if told is None else parsedate_to_datetime(told).timestamp() - now
