"""Settings: their sources, and the errors for names and values that are invalid."""

import re
import traceback as tracebacks
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.config import (
    JOBS,
    SECTIONS,
    SETTINGS_FILE,
    ReplayQueue,
    Settings,
    dotted,
    load_effective,
    load_settings,
    name_of,
    section_of,
    shown,
    unknown_variables,
    variable,
    with_flags,
)
from penstock.config.names import FORMER
from penstock.config.settings import EXAMPLES
from penstock.errors import ConfigurationError
from penstock.messaging.addresses import MASK


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder, which has no settings."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_flags_override_the_environment_and_the_environment_overrides_the_file(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / SETTINGS_FILE).write_text("[objects]\nmax_batch_objects = 1\nmax_attempts = 1\n[worker]\nlease = 20\n")
    monkeypatch.setenv("PENSTOCK_OBJECTS_MAX_BATCH_OBJECTS", "2")
    monkeypatch.setenv("PENSTOCK_OBJECTS_MAX_ATTEMPTS", "2")
    settings = load_settings(objects_max_batch_objects=3, objects_max_attempts=None)
    assert (settings.objects_max_batch_objects, settings.objects_max_attempts, settings.worker_lease) == (3, 2, 20.0)


def test_an_invalid_value_is_named_with_its_origin(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "it should be a duration of at least 3s and at most 12h, such as 90s or 1h30m"
    with pytest.raises(ConfigurationError) as caught:
        load_settings(worker_lease=1)
    assert str(caught.value) == f"The setting worker.lease (from a flag or an argument) is invalid: {expected}, not 1."
    (here / SETTINGS_FILE).write_text("[worker]\nlease = 'soon'\n")
    with pytest.raises(ConfigurationError, match=rf"\(from penstock\.toml\) is invalid: {expected}, not 'soon'\.$"):
        load_settings()
    monkeypatch.setenv("PENSTOCK_WORKER_LEASE", "1d")
    with pytest.raises(ConfigurationError, match=r"\(from PENSTOCK_WORKER_LEASE\) is invalid: .*, not '1d'\.$"):
        load_settings()


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("90s", 90.0),
        ("2m", 120.0),
        ("1h30m", 5_400.0),
        ("45", 45.0),
        (45, 45.0),
        (4.5, 4.5),
        (timedelta(minutes=1), 60.0),
    ],
)
def test_a_duration_is_text_or_seconds(given: object, seconds: float) -> None:
    assert load_settings(worker_lease=given).worker_lease == seconds
    assert with_flags(load_settings(), worker_lease=given).worker_lease == seconds
    found = load_settings(
        alerts_lagging_queues={"orders": given}, dead_letters_replay_queues={"orders": {"replay_base": given}}
    )
    assert found.alerts_lagging_queues == {"orders": seconds}
    assert found.dead_letters_replay_queues["orders"].replay_base == seconds


@pytest.mark.parametrize("given", [True, -1, 0, "", "soon", "5 parsecs", float("inf"), float("nan"), [1], "1e400"])
def test_an_invalid_duration_is_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match=r"objects\.retry_base .* it should be a duration above 0"):
        load_settings(objects_retry_base=given)


def test_a_duration_in_the_file_may_be_text(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / SETTINGS_FILE).write_text("[objects]\narchive_after = '90d'\n[alerts.lagging_queues]\norders = '1m'\n")
    monkeypatch.setenv("PENSTOCK_DEAD_LETTERS_REPLAY_BASE", "1m30s")
    settings = load_settings()
    assert settings.objects_archive_after == 90 * 86_400.0
    assert settings.alerts_lagging_queues == {"orders": 60.0}
    assert settings.dead_letters_replay_base == 90.0


@pytest.mark.parametrize(
    ("toml", "error"),
    [
        ("colour = 1", "penstock.toml has no setting colour. `penstock admin config show --all` lists all settings."),
        ("borker = 'memory://'", "penstock.toml has no setting borker. Did you mean broker above the first [section]?"),
        ("concurrency = 5", "penstock.toml: concurrency belongs in the section [worker]."),
        ("lease_seconds = 5", "penstock.toml: lease_seconds is now lease in the section [worker]."),
        ("state = '.'", "penstock.toml: state is now called data_dir."),
        ("log_level = 'debug'", "penstock.toml: log_level is now level in the section [log]."),
        ("worker_lease = 5", "penstock.toml: worker_lease is now lease in the section [worker]."),
        ("[spark_conf]\na = '1'", "penstock.toml: the table [spark_conf] is now [spark.conf]."),
        ("[queues]\na = 1", "penstock.toml: the table [queues] is now [worker.queues]."),
        ("worker = 5", "penstock.toml: worker is a section, not a setting. Write [worker] and its settings below."),
        ("[workers]\nlease = 5", "penstock.toml has no section [workers]. Did you mean [worker]?"),
        (
            "[worker]\nmax_attempts = 5",
            (
                "penstock.toml has no setting max_attempts in the section [worker]. "
                "Did you mean max_attempts in the section [objects]?"
            ),
        ),
        (
            "[worker]\nlease_seconds = 5",
            (
                "penstock.toml has no setting lease_seconds in the section [worker]. "
                "Did you mean lease in the section [worker]?"
            ),
        ),
        (
            "[objects]\nmax_object = 5",
            (
                "penstock.toml has no setting max_object in the section [objects]. "
                "Did you mean max_batch_objects in the section [objects]?"
            ),
        ),
        (
            "[worker]\nbroker = 'memory://'",
            "penstock.toml: broker belongs in no section. Move it above the first [section].",
        ),
    ],
)
def test_an_unknown_or_former_name_in_the_file_is_refused(here: Path, toml: str, error: str) -> None:
    (here / SETTINGS_FILE).write_text(f"{toml}\n")
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert str(caught.value) == error


def test_an_unknown_part_of_a_table_is_refused(here: Path) -> None:
    (here / SETTINGS_FILE).write_text("[dead_letters.replay_queues.orders]\nreplays_max = 5\n")
    with pytest.raises(ConfigurationError, match=r"replay_queues \(from penstock\.toml\) has an unknown part orders\."):
        load_settings()


@pytest.mark.parametrize("former", sorted(FORMER))
def test_a_former_name_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch, former: str) -> None:
    monkeypatch.setenv(f"PENSTOCK_{former.upper()}", "1")
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    now = variable(FORMER[former])
    assert str(caught.value) == f"The environment variable {variable(former)} is now called {now}. Rename it."


@pytest.mark.parametrize("file", ["penstock_sentry_dsn", "PENSTOCK_SENTRY_DSN"])
def test_a_former_name_in_the_secrets_directory_is_an_error(
    here: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    (here / file).write_text("https://key@host/1")
    monkeypatch.setenv("PENSTOCK_SECRETS_DIR", str(here))
    with pytest.raises(ConfigurationError, match=rf"{file} .* is now called penstock_alerts_sentry_dsn"):
        load_settings()


def test_an_argument_that_is_not_a_setting_is_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(concurrency=5)
    assert str(caught.value) == "There is no setting concurrency. Did you mean worker_concurrency?"


def test_invalid_json_in_a_variable_is_reported_with_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_WORKER_QUEUES", "greetings=2")
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert str(caught.value) == 'PENSTOCK_WORKER_QUEUES is not valid JSON. Write JSON, such as {"orders": 2}.'


def test_a_list_instead_of_a_table_is_refused_with_an_example(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "penstock.toml").write_text('[worker]\nqueues = ["orders"]\n')
    with pytest.raises(ConfigurationError, match="it should be a table, not") as caught:
        load_settings()
    pattern = (
        r"Write, for example, (.*) in the section \[worker\] of penstock.toml, or PENSTOCK_WORKER_QUEUES='(.*)'\.$"
    )
    (example,) = re.findall(pattern, str(caught.value))
    (here / "penstock.toml").write_text(f"[worker]\n{example[0]}")
    assert load_settings().worker_queues == {"orders": 2}
    monkeypatch.setenv("PENSTOCK_WORKER_QUEUES", example[1])
    assert load_settings().worker_queues == {"orders": 2}


def test_invalid_json_in_a_secret_is_reported_with_its_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "penstock_spark_conf").write_text("{bad")
    monkeypatch.setenv("PENSTOCK_SECRETS_DIR", str(here))
    with pytest.raises(ConfigurationError, match="file penstock_spark_conf in PENSTOCK_SECRETS_DIR is not valid JSON"):
        load_settings()


def test_every_setting_that_is_a_table_has_a_valid_example() -> None:
    tables = {name for name, field in Settings.model_fields.items() if re.search(r"dict|list", str(field.annotation))}
    assert set(EXAMPLES) == tables
    assert load_settings(**EXAMPLES).worker_queues == EXAMPLES["worker_queues"]


def test_invalid_toml_is_reported_with_its_file(here: Path) -> None:
    (here / SETTINGS_FILE).write_text("[worker]\nlease = \n")
    with pytest.raises(ConfigurationError, match=r"penstock\.toml in the current folder cannot be read"):
        load_settings()


def test_a_data_directory_that_is_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DATA_DIR", "s3://lake/state")
    with pytest.raises(
        ConfigurationError, match=r"setting data_dir .* is invalid: .*s3://lake/state is not a folder on this host"
    ):
        load_settings()


def test_secrets_override_the_file_and_the_environment_overrides_secrets(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = here / "secrets"
    secrets.mkdir()
    for name in ("broker", "ledger", "data_dir"):
        (secrets / f"penstock_{name}").write_text("from the secrets\n")
    (here / SETTINGS_FILE).write_text("broker = 'from the file'\n[log]\nservice = 'from the file'\n")
    monkeypatch.setenv("PENSTOCK_SECRETS_DIR", str(secrets))
    monkeypatch.setenv("PENSTOCK_LEDGER", "from the environment")
    settings = load_settings(data_dir="from the flag")
    assert (settings.broker, settings.ledger) == ("from the secrets", "from the environment")
    assert (settings.data_dir, settings.log_service) == ("from the flag", "from the file")
    origins = load_effective(data_dir="from the flag").origins
    assert (origins["broker"], origins["ledger"]) == (f"secrets directory {secrets}", "PENSTOCK_LEDGER")
    assert (origins["data_dir"], origins["log_service"], origins["worker_queues"]) == ("flag", SETTINGS_FILE, "default")


def test_a_table_of_a_higher_source_replaces_that_of_a_lower_one(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / SETTINGS_FILE).write_text(
        "[worker.queues]\norders = 2\n[dead_letters.replay_queues.orders]\nmax_replays = 5\n"
    )
    assert load_settings(worker_queues={"mails": 1}).worker_queues == {"mails": 1}
    monkeypatch.setenv("PENSTOCK_WORKER_QUEUES", '{"mails": 1}')
    monkeypatch.setenv("PENSTOCK_DEAD_LETTERS_REPLAY_QUEUES", "{}")
    settings = load_settings()
    assert (settings.worker_queues, settings.dead_letters_replay_queues) == ({"mails": 1}, {})


def test_a_missing_secrets_directory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SECRETS_DIR", "/nowhere")
    with pytest.raises(ConfigurationError, match="PENSTOCK_SECRETS_DIR is /nowhere, which is not a folder"):
        load_settings()


def test_an_unreadable_secret_is_reported_with_its_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "penstock_broker").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("PENSTOCK_SECRETS_DIR", str(here))
    with pytest.raises(ConfigurationError, match="penstock_broker in PENSTOCK_SECRETS_DIR cannot be read") as caught:
        load_settings()
    assert SETTINGS_FILE not in str(caught.value)


def test_flags_change_settings_and_are_checked_like_them() -> None:
    settings = load_settings()
    assert with_flags(settings, worker_concurrency=5, worker_queues=None).worker_concurrency == 5
    assert with_flags(settings, worker_concurrency=None) == settings
    with pytest.raises(ConfigurationError, match=r"worker\.concurrency .*greater than or equal to 1, not 0"):
        with_flags(settings, worker_concurrency=0)
    with pytest.raises(ConfigurationError, match=r"worker\.queues\.a \(from a flag or an argument\)"):
        with_flags(settings, worker_queues={"a": 0})


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 86_401.0])
def test_a_stop_timeout_has_a_bound(seconds: float) -> None:
    assert load_settings(worker_stop_timeout=86_400.0).worker_stop_timeout == 86_400.0
    with pytest.raises(ConfigurationError, match=r"worker\.stop_timeout .* is invalid"):
        load_settings(worker_stop_timeout=seconds)
    with pytest.raises(ConfigurationError, match=r"worker\.stop_timeout .* is invalid"):
        with_flags(load_settings(), worker_stop_timeout=seconds)


def test_variables_that_name_no_setting_are_listed_with_suggestions(monkeypatch: pytest.MonkeyPatch) -> None:
    refused_at_loading = "PENSTOCK_CONCURRENCY"  # a former name, for which ignoring it would be the wrong word
    for name in ("PENSTOCK_LEASE_SECOND", "penstock_broker", "PENSTOCK_SECRETS_DIR", "PENSTOCKED", refused_at_loading):
        monkeypatch.setenv(name, "")
    assert [(unknown.name, unknown.suggestion) for unknown in unknown_variables()] == [
        ("PENSTOCK_LEASE_SECOND", "PENSTOCK_WORKER_LEASE")
    ]
    monkeypatch.setenv("PENSTOCK_COLOUR", "red")
    assert list(map(str, unknown_variables())) == [
        "The environment variable PENSTOCK_COLOUR is not a setting of Penstock and is ignored.",
        (
            "The environment variable PENSTOCK_LEASE_SECOND is not a setting of Penstock and is ignored. "
            "Did you mean PENSTOCK_WORKER_LEASE?"
        ),
    ]


@pytest.mark.parametrize(
    "suffix",
    [
        "SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR",
        "PORT_80_TCP_PORT", "PORT_80_TCP_PROTO", "PORT_53_UDP", "MONITOR_SERVICE_HOST", "MONITOR_PORT",
        "MONITOR_PORT_9564_TCP",
    ],
)  # fmt: skip
def test_variables_that_kubernetes_sets_are_ignored(monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setenv(f"PENSTOCK_{suffix}", "tcp://10.0.0.1:80")
    assert unknown_variables() == []
    load_settings()


@pytest.mark.parametrize(
    ("name", "value", "masked"),
    [
        ("broker", "redis://:hush@host:6379/0", "redis://:***@host:6379/0"),
        ("broker", "redis://me:p/hush?hush#hush@host", "redis://me:***@host"),
        ("broker", "redis:/me:hush@host", "***"),
        ("broker", "me:hush@host", "***"),
        ("broker", "redis://h?pasword=hush", "redis://h?pasword=***"),
        ("broker", "redis://hush@127.0.0.1:7399/0", "redis://***@127.0.0.1:7399/0"),
        ("broker", "redis:h?pasword=hush", "***"),
        ("broker", "redis://h?pass=hush&db=1", "redis://h?pass=***&db=1"),
        ("ledger", "mysql://me:p@ss:w@db/x?ssl=1", "mysql://me:***@db/x?ssl=1"),
        ("ledger", "postgresql://db/x?user=me&password=hush&a=b", "postgresql://db/x?user=me&password=***&a=***"),
        ("ledger", "sqlite:///a@b:c.db", "sqlite:///a@b:c.db"),
        ("api_token", "hush", "***"),
        ("api_token", {"a": "hush"}, "***"),
        ("db_password", None, None),
        ("alerts_notify_urls", ["slack://hush"], "***"),
        ("alerts_notify_urls", {"a": "slack://hush"}, "***"),
        ("alerts_notify_urls.0", ["slack://hush"], "***"),
        ("alerts_notify_urls", [], []),
        ("broker", ["redis://:hush@host", "me:hush@host"], ["redis://:***@host", "***"]),
        ("ledger", ("mysql://me:hush@db",), ["mysql://me:***@db"]),
        ("spark_conf", [{"fs.s3a.secret.key": "hush"}], [{"fs.s3a.secret.key": "***"}]),
        ("spark_conf", {"fs.s3a.secret.key": "hush", "fs.s3a.access.key": "hush", "a": 1}, {"a": 1}),
    ],
)
def test_secrets_are_masked(name: str, value: object, masked: object) -> None:
    found = shown(name, value)
    assert "hush" not in str(found)
    if isinstance(found, dict):
        found = {key: inner for key, inner in found.items() if inner != MASK}
    assert found == masked


def test_a_secret_is_not_in_the_error_message_about_it(here: Path) -> None:
    (here / SETTINGS_FILE).write_text("[spark.conf]\nsome_password = 12345\n")
    with pytest.raises(ConfigurationError, match=r"spark\.conf") as caught:
        load_settings()
    assert "12345" not in str(caught.value)


def test_a_secret_is_not_in_the_traceback_of_an_uncaught_error(here: Path) -> None:
    settings, secret = load_settings(), "hush"  # a traceback shows lines of this file, too
    (here / SETTINGS_FILE).write_text(f'[alerts]\nnotify_urls = "slack://{secret}"\n')
    loads: list[Callable[[], Settings]] = [
        load_settings,
        lambda: with_flags(settings, alerts_notify_urls=f"slack://{secret}"),
    ]
    for load in loads:
        with pytest.raises(ConfigurationError, match=r"notify_urls .* is invalid: .*, not '\*\*\*'") as caught:
            load()
        assert secret not in "".join(tracebacks.format_exception(caught.value))


def test_aws_region_sets_the_region_unless_a_setting_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert load_settings().aws.region == "eu-central-1"
    assert load_settings(aws_region="eu-west-1").aws.region == "eu-west-1"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("worker_lease", 60.0, "1m"),
        ("worker_idempotency_retention", 14 * 86_400.0, "14d"),
        ("alerts_lagging_queues", {"orders": 90.0}, {"orders": "1m30s"}),
        ("dead_letters_replay_queues", {"orders": ReplayQueue(replay_base=0.5)}, {"orders": {"replay_base": "0.5s"}}),
        ("objects_max_quarantine_ratio", 1.0, 1.0),
        ("worker_lease", "soon", "soon"),
    ],
)
def test_durations_are_shown_as_text(name: str, value: object, text: object) -> None:
    assert shown(name, value) == text


def test_a_field_is_named_by_its_section_and_its_name() -> None:
    plain = {field for field in Settings.model_fields if not section_of(field)}
    assert plain == {"app", "broker", "ledger", "data_dir", "one_host", "app_name", "kill_at"}
    assert {section_of(field) for field in Settings.model_fields} == {"", *SECTIONS}
    for field in Settings.model_fields:
        assert variable(field) == f"PENSTOCK_{dotted(field).replace('.', '_').upper()}"
        assert field == "_".join(part for part in (section_of(field), name_of(field)) if part)


def test_every_former_name_belongs_to_a_current_setting() -> None:
    assert set(FORMER.values()) <= set(Settings.model_fields)
    assert not set(FORMER) & set(Settings.model_fields)


@pytest.mark.parametrize(
    ("text", "jobs", "serves"),
    [
        ("all", JOBS, True),
        ("only", JOBS, False),
        ("none", (), True),
        ("monitor", ("monitor",), True),
        (" gc, replay ", ("gc", "replay"), True),
    ],
)
def test_worker_jobs_selects_the_jobs_and_whether_handlers_are_served(
    text: str, jobs: tuple[str, ...], serves: bool
) -> None:
    settings = load_settings(worker_jobs=text)
    assert (settings.jobs, settings.serves_handlers) == (frozenset(jobs), serves)


@pytest.mark.parametrize("text", ["", "replayer", "all,gc", "gc,gc", "gc,", "ALL"])
def test_an_unknown_job_is_an_error_that_lists_the_names(text: str) -> None:
    with pytest.raises(ConfigurationError) as failure:
        load_settings(worker_jobs=text)
    assert "worker.jobs" in str(failure.value)
    assert f"it should be all, none, only, or names separated by commas: {', '.join(JOBS)}" in str(failure.value)
