"""What `penstock doctor` says of how this process comes to AWS: never the credentials themselves."""

from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from penstock.errors import ConfigurationError
from penstock.storage.aws import Aws

NO_CREDENTIALS = (
    "No credentials for AWS were found: set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a "
    "role is given."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Which of boto3's providers found credentials: env, shared-credentials-file, container-role, iam-role, ..."""

    provider: str
    region: str | None  # None: none is set


def access(aws: Aws) -> Access:
    """Looked up on this machine, or at its metadata service. Raises `ConfigurationError`."""
    from botocore.exceptions import BotoCoreError

    session = aws.session()
    try:
        found = session.get_credentials()
    except BotoCoreError as error:
        raise ConfigurationError(f"No credentials for AWS can be had: {error}.") from error
    if found is None:
        raise ConfigurationError(NO_CREDENTIALS)
    return Access(provider=found.method, region=session.region_name)


def clock_ahead_seconds(answer: Any, *, now: float) -> float | None:
    """AWS's clock less ours, by an answer's date, which has whole seconds; None where it has none."""
    told = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return None if told is None else parsedate_to_datetime(told).timestamp() - now
