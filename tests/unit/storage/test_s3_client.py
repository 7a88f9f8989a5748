"""Requests to S3: their endpoint, their credentials, and the region of a bucket."""

import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.services.s3_stub import Answered, S3Stub, refusal

from penstock.errors import ConfigurationError, TemporaryError
from penstock.storage.aws import Aws
from penstock.storage.s3 import (
    BucketLocation,
    bucket_client,
    delta_options,
    is_nameable,
    location_of,
    region_of,
    service_client,
)

DEADLINE_SECONDS = 60.0
REGIONS = itertools.count()  # the results are cached for each value of `Aws`, so each test has its own
SECRET = "very-secret"


@pytest.fixture
def aws() -> Aws:
    return Aws(region=f"test-{next(REGIONS)}")


@pytest.fixture
def stub() -> Iterator[S3Stub]:
    with S3Stub(lambda asked: Answered(headers={"ETag": '"0f"'})) as server:
        yield server


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Return a profile with temporary credentials; the environment has those of another account."""
    config, credentials = tmp_path / "config", tmp_path / "credentials"
    config.write_text("[profile somebody]\nregion = mars-1\n", encoding="utf-8")
    credentials.write_text(
        f"[somebody]\naws_access_key_id = AKSOMEBODY\naws_secret_access_key = {SECRET}\naws_session_token = TOKEN\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENVIRONMENT")
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    return "somebody"


def request_with_both(aws: Aws) -> None:
    bucket_client("lake", aws).put("a", b"1")
    service_client(aws).put_object(Bucket="lake", Key="a", Body=b"1")


def test_threads_that_begin_together_share_one_client(aws: Aws, stub: S3Stub) -> None:
    """Threads that open objects ahead in a new executor begin together."""
    aws, together = replace(aws, endpoint_url=stub.url), threading.Barrier(8)

    def clients(_: int) -> Sequence[object]:
        together.wait(DEADLINE_SECONDS)
        return bucket_client("lake", aws), service_client(aws)

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(clients, range(8)))
    for kind in zip(*made, strict=True):
        assert len(set(map(id, kind))) == 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"AWS_ENDPOINT_URL": "http://minio:9000"}, "http://minio:9000"),
        ({"AWS_ENDPOINT_URL": "http://other:1", "AWS_ENDPOINT_URL_S3": "https://s3.local"}, "https://s3.local"),
    ],
)
def test_the_environment_names_the_endpoint(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert location_of("lake", aws) == BucketLocation(endpoint_url=expected, region=aws.region or "")


def test_the_settings_override_the_environment(aws: Aws, stub: S3Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    request_with_both(replace(aws, endpoint_url=stub.url))
    assert [asked.target for asked in stub.asked] == ["/lake/a", "/lake/a"]


def test_other_servers_need_no_region(stub: S3Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    place = location_of("lake", Aws(endpoint_url=stub.url))
    assert place == BucketLocation(endpoint_url=stub.url, region="us-east-1")


@pytest.mark.parametrize("status", [200, 301, 403, 404])
def test_the_region_of_a_bucket_is_read_from_any_response(aws: Aws, stub: S3Stub, status: int) -> None:
    stub.answer = lambda asked: Answered(status=status, headers={"x-amz-bucket-region": "eu-north-1"})
    assert region_of("lake", service_client(replace(aws, endpoint_url=stub.url))) == "eu-north-1"


def test_a_server_may_report_no_region(aws: Aws, stub: S3Stub) -> None:
    assert region_of("lake", service_client(replace(aws, endpoint_url=stub.url))) is None


def test_an_unreachable_server_is_a_temporary_error(aws: Aws) -> None:
    with pytest.raises(TemporaryError, match=r"^s3://lake cannot be used: no connection to the server\.$"):
        region_of("lake", service_client(replace(aws, endpoint_url="http://127.0.0.1:9")))


class Buckets:
    """A stand-in for boto3's client where AWS itself would be called."""

    def __init__(self, endpoint: str, region: str, bucket_region: str) -> None:
        self.meta = type("Meta", (), {"endpoint_url": endpoint, "region_name": region})
        self.bucket_region = bucket_region

    def head_bucket(self, Bucket: str) -> dict[str, Any]:  # noqa: N803 - boto3's name
        return {"ResponseMetadata": {"HTTPHeaders": {"x-amz-bucket-region": self.bucket_region}}}


@pytest.mark.parametrize(
    ("region", "bucket_region", "endpoint"),
    [
        ("us-east-1", "us-east-1", "https://s3.amazonaws.com"),
        ("us-east-1", "eu-west-3", "https://s3.eu-west-3.amazonaws.com"),
        ("cn-north-1", "cn-northwest-1", "https://s3.cn-northwest-1.amazonaws.com.cn"),
    ],
)
def test_the_endpoint_at_aws_is_that_of_the_bucket_s_region(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, region: str, bucket_region: str, endpoint: str
) -> None:
    client = Buckets("https://s3.amazonaws.com", region, bucket_region)
    monkeypatch.setattr("penstock.storage.s3.service_client", lambda aws: client)
    assert location_of("lake", aws) == BucketLocation(endpoint_url=endpoint, region=bucket_region)


def test_both_clients_and_delta_use_the_credentials_of_the_profile(stub: S3Stub, profile: str) -> None:
    aws = Aws(profile=profile, endpoint_url=stub.url)
    request_with_both(aws)
    for asked in stub.asked:
        assert "Credential=AKSOMEBODY/" in asked.headers["authorization"]
        assert "/mars-1/s3/" in asked.headers["authorization"]
        assert asked.headers["x-amz-security-token"] == "TOKEN"
        assert "penstock" in asked.headers["user-agent"]
    options = delta_options(aws, "lake")
    assert options["aws_access_key_id"] == "AKSOMEBODY"
    assert (options["aws_secret_access_key"], options["aws_session_token"]) == (SECRET, "TOKEN")
    assert (options["aws_region"], options["aws_endpoint_url"]) == ("mars-1", stub.url)
    assert (options["aws_allow_http"], options["aws_conditional_put"]) == ("true", "etag")
    assert "aws_request_payer" not in options
    for shown in (aws, bucket_client("lake", aws), location_of("lake", aws)):
        assert SECRET not in repr(shown)


def test_delta_does_not_use_the_session_token_of_another_key(
    stub: S3Stub, profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").write_text("[somebody]\naws_access_key_id = AKSTATIC\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of AKENVIRONMENT")
    aws = Aws(profile=profile, region=f"test-{next(REGIONS)}", endpoint_url=stub.url)
    with pytest.raises(ConfigurationError, match="has no session token"):
        delta_options(aws, "lake")


def test_delta_gets_the_options_for_tls_and_requester_pays(aws: Aws) -> None:
    options = delta_options(replace(aws, endpoint_url="https://s3.local", requester_pays=True), "lake")
    assert options["aws_allow_http"] == "false"
    assert options["aws_request_payer"] == "true"
    assert all(isinstance(value, str) for value in options.values())


def test_http_is_refused_for_an_https_endpoint(aws: Aws) -> None:
    with pytest.raises(TemporaryError):
        region_of("lake", service_client(replace(aws, endpoint_url="https://127.0.0.1:9")))
    options = bucket_client("lake", replace(aws, endpoint_url="https://127.0.0.1:9")).client_options
    assert options is not None
    assert str(options["allow_http"]).lower() == "false"


def test_missing_credentials_are_a_configuration_error(aws: Aws, stub: S3Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    plain = replace(aws, endpoint_url=stub.url)
    for connect in (
        bucket_client,
        lambda bucket, aws: service_client(aws),
        lambda bucket, aws: delta_options(aws, bucket),
    ):
        with pytest.raises(ConfigurationError, match="No credentials for AWS were found"):
            connect("lake", plain)
    assert stub.asked == []


def test_renewed_credentials_are_used(stub: S3Stub, aws: Aws) -> None:
    plain = replace(aws, endpoint_url=stub.url)
    credentials = plain.session().get_credentials()
    store = bucket_client("lake", plain)
    credentials.access_key = "AKRENEWED"
    assert store.credential_provider is not None
    assert store.credential_provider()["access_key_id"] == "AKRENEWED"  # type: ignore[index] # it is not a coroutine


def test_requests_are_retried_three_times(stub: S3Stub, aws: Aws) -> None:
    stub.answer = lambda asked: refusal(503, "SlowDown")
    store = bucket_client("lake", replace(aws, endpoint_url=stub.url))
    with pytest.raises(Exception, match="503"):
        store.get("a")
    assert len(stub.asked) == 4


@pytest.mark.parametrize("key", ["a", "a/b c+%2F", "日本", "a ", "..a/.b", "a\\b"])
def test_obstore_accepts_ordinary_keys(key: str) -> None:
    assert is_nameable(key)


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", ".", "a/../b", "a\nb", "a\x7f"])
def test_obstore_does_not_accept_unusual_keys(key: str) -> None:
    assert not is_nameable(key)
