"""This process's access to AWS: region, endpoint and credentials, for SQS and S3 alike.

Credentials come from boto3's default chain (environment, profile, web identity, container, instance) and are not
stored here: `Aws` is sent to Spark's executors, and each of them uses its own chain. `access` returns the source of
the credentials for `penstock doctor`, never the credentials themselves.
"""

import functools
import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime
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
    """A version of `functools.cache` in which one thread creates the value while the others wait.

    A boto3 session must not create clients in several threads. When a task starts with 32 threads, each would also
    fetch credentials and load AWS's service models (measured on two cores: 3.6 to 6.6 s, against 0.5 s with this
    class).
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
        """Clear the cache: a forked process must not use its parent's connections."""
        self._lock = threading.RLock()
        self.cache_clear()

    def cache_clear(self) -> None:
        """Clear the cache."""
        self._cached.cache_clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Aws:
    """The AWS settings. None: the value that boto3 finds in the environment or in AWS's configuration files."""

    region: str | None = None
    endpoint_url: str | None = None  # of a compatible server; None: AWS itself
    profile: str | None = None
    requester_pays: bool = False  # for S3: the reader, not the bucket's owner, pays for requests

    def session(self) -> "Session":
        """Return the process's boto3 session. Only one thread at a time may create clients from it.

        Raises `ConfigurationError` if boto3 is not installed or the profile does not exist.
        """
        return _session(self)

    def credentials(self) -> "Credentials":
        """Return boto3's credentials, which renew themselves: pass the object on and do not store its values.

        Raises `ConfigurationError` if there are none.
        """
        from botocore.exceptions import BotoCoreError

        try:
            found = self.session().get_credentials()
        except BotoCoreError as error:
            raise ConfigurationError(f"AWS credentials cannot be loaded: {error}.") from error
        if found is None:
            raise ConfigurationError(NO_CREDENTIALS)
        return found

    def client(self, service: str, **options: Any) -> Any:
        """Return a boto3 client. Raises `ConfigurationError` if no region is configured."""
        from botocore.exceptions import BotoCoreError

        try:
            return self.session().client(service, endpoint_url=self.endpoint_url, **options)
        except (BotoCoreError, ValueError) as error:
            raise ConfigurationError(
                f"No client for AWS {service} can be created: {str(error).rstrip('.')}. Set aws.region (or "
                "AWS_REGION), and check aws.endpoint_url and aws.profile."
            ) from error


def bounded_session(*, connect_seconds: float, response_seconds: float) -> Any:
    """Return a botocore session for a library that creates its own clients, so that their requests are bounded.

    Raises `ConfigurationError` if boto3 is not installed.
    """
    require_aws()
    from botocore.config import Config
    from botocore.session import Session as CoreSession

    session = CoreSession()
    session.set_default_client_config(
        Config(connect_timeout=connect_seconds, read_timeout=response_seconds, user_agent_extra="penstock")
    )
    return session


def require_aws() -> None:
    """Raise `ConfigurationError`, naming the extra, if a package for AWS is missing. Imports nothing."""
    missing = [package for package in ("boto3", "obstore") if find_spec(package) is None]
    if missing:
        raise ConfigurationError(
            f"AWS needs the package {missing[0]}, which is not installed: run pip install 'penstock[aws]'."
        )


@MadeOnce
def _session(aws: Aws) -> "Session":
    require_aws()
    import boto3
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session as CoreSession

    core = CoreSession()
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=parsed_time)
    try:
        return boto3.session.Session(botocore_session=core, region_name=aws.region, profile_name=aws.profile)
    except BotoCoreError as error:
        raise ConfigurationError(f"The AWS settings cannot be used: {error}.") from error


def parsed_time(value: Any) -> datetime:
    """Return the time in a response of AWS: ISO 8601, RFC 822 or epoch seconds. Raises `ValueError`.

    S3's listings have an ISO 8601 time per object, which botocore parses with dateutil: 60 of the 100 us of CPU that
    boto3 takes for an object of a listing (measured).
    """
    from botocore.utils import parse_timestamp

    if isinstance(value, str) and value[10:11] == "T" and value.endswith("Z"):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
    found: datetime = parse_timestamp(value)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialSource:
    """The boto3 provider of the credentials: env, shared-credentials-file, container-role, iam-role, ..."""

    provider: str
    region: str | None  # None: not set


def access(aws: Aws) -> CredentialSource:
    """Find the source of the credentials, on this machine or at its metadata service. Raises `ConfigurationError`."""
    return CredentialSource(provider=aws.credentials().method, region=aws.session().region_name)


def clock_ahead_seconds(response: Any, *, now: float) -> float | None:
    """Return AWS's clock minus ours by the date of a response, in whole seconds; None if it has no date."""
    date = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return None if date is None else parsedate_to_datetime(date).timestamp() - now
