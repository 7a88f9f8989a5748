"""How this process speaks to AWS: region, endpoint and credentials, for SQS and S3 alike.

Credentials come by boto3's own chain (environment, profile, web identity, container, instance), and nothing of them is
kept here: the value travels to Spark's executors, each of which asks its own chain.

What `penstock doctor` says of how this process comes to AWS: never the credentials themselves.
"""

import functools
import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.credentials import Credentials


NO_CREDENTIALS = (
    "No credentials for AWS were found: set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a "
    "role is given."
)

_Made = TypeVar("_Made")


class MadeOnce(Generic[_Made]):
    """As `functools.cache`, but one thread makes it while the others wait.

    A session may not make clients in several threads; and where a task begins with 32 of them, each would ask for
    credentials and read AWS's service models for itself (measured: 3.6 to 6.6 s on two cores, and 0.5 s so).
    """

    def __init__(self, make: Callable[..., _Made]) -> None:
        functools.update_wrapper(self, make)
        self._lock = threading.RLock()
        self._cached = functools.cache(make)  # called under the lock
        os.register_at_fork(after_in_child=self._begin_in_copy)

    def __call__(self, *arguments: Hashable) -> _Made:
        with self._lock:
            return self._cached(*arguments)

    def _begin_in_copy(self) -> None:
        """Forget all that was made: a forked process must not use its parent's connections."""
        self._lock = threading.RLock()
        self.cache_clear()

    def cache_clear(self) -> None:
        """Forget all that was made."""
        self._cached.cache_clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Aws:
    """What the settings say. None: what boto3 finds in the environment and in AWS's own configuration files."""

    region: str | None = None
    endpoint_url: str | None = None  # of a server that speaks AWS's dialect; else AWS itself
    profile: str | None = None
    requester_pays: bool = False  # of S3: the reader, not the bucket's owner, pays for requests

    def session(self) -> "Session":
        """boto3's session, one a process. Only one thread at a time may make clients of it.

        Raises `ConfigurationError` where boto3 is missing or the profile is not there.
        """
        return _session(self)

    def credentials(self) -> "Credentials":
        """What boto3's chain finds, renewed as it ends: hand it on, and keep nothing of it.

        Raises `ConfigurationError` where there are none.
        """
        from botocore.exceptions import BotoCoreError

        try:
            found = self.session().get_credentials()
        except BotoCoreError as error:
            raise ConfigurationError(f"No credentials for AWS can be had: {error}.") from error
        if found is None:
            raise ConfigurationError(NO_CREDENTIALS)
        return found

    def client(self, service: str, **options: Any) -> Any:
        """A client of boto3. Raises `ConfigurationError` where no region can be found."""
        from botocore.exceptions import BotoCoreError

        try:
            return self.session().client(service, endpoint_url=self.endpoint_url, **options)
        except (BotoCoreError, ValueError) as error:
            raise ConfigurationError(
                f"There is no client for AWS's {service}: {str(error).rstrip('.')}. Set aws_region (or AWS_REGION), "
                "and look at aws_endpoint_url and aws_profile."
            ) from error


def require_aws() -> None:
    """Raise `ConfigurationError`, naming the extra, where a package for AWS is missing. Imports nothing."""
    missing = [package for package in ("boto3", "obstore") if find_spec(package) is None]
    if missing:
        raise ConfigurationError(
            f"AWS is asked for, and the package {missing[0]} cannot be found here: run pip install 'penstock[aws]'."
        )


@MadeOnce
def _session(aws: Aws) -> "Session":
    require_aws()
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        return boto3.session.Session(region_name=aws.region, profile_name=aws.profile)
    except BotoCoreError as error:
        raise ConfigurationError(f"AWS's settings cannot be used: {error}.") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialSource:
    """Which of boto3's providers found credentials: env, shared-credentials-file, container-role, iam-role, ..."""

    provider: str
    region: str | None  # None: none is set


def access(aws: Aws) -> CredentialSource:
    """Looked up on this machine, or at its metadata service. Raises `ConfigurationError`."""
    return CredentialSource(provider=aws.credentials().method, region=aws.session().region_name)


def clock_ahead_seconds(answer: Any, *, now: float) -> float | None:
    """AWS's clock less ours, by an answer's date, which has whole seconds; None where it has none."""
    told = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return None if told is None else parsedate_to_datetime(told).timestamp() - now
