"""Variables of the AWS sample replayer, and the settings of ours that take precedence."""

from pathlib import Path

import pytest

from penstock.app.replayer import replay_policy, with_sample
from penstock.config import Settings, load_settings
from penstock.dead_letters.policy import ReplayPolicy
from penstock.dead_letters.sample import SampleSettings, sample_settings
from penstock.errors import ConfigurationError

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
SAMPLE_VARIABLES = {"MAX_ATTEMPS": "5", "BACKOFF_RATE": "3", "MESSAGE_RETENTION_PERIOD": "345600", "SQS_MAIN_URL": URL}


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_variable_is_parsed() -> None:
    found = sample_settings({**SAMPLE_VARIABLES, "HOME": "/root"})
    assert found == SampleSettings(replays_max=5, base_seconds=3.0, cap_seconds=345_600.0, queue=URL)
    assert sample_settings({"MAX_ATTEMPS": " "}) == SampleSettings()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MAX_ATTEMPS", "-1", "a whole number from 0 to 1000"),
        ("MAX_ATTEMPS", "1001", "a whole number from 0 to 1000"),
        ("MAX_ATTEMPS", "3.0", "a whole number from 0 to 1000"),
        ("BACKOFF_RATE", "0", "a number of seconds above 0"),
        ("BACKOFF_RATE", "nan", "a number of seconds above 0"),
        ("MESSAGE_RETENTION_PERIOD", "inf", "a number of seconds above 0"),
        ("SQS_MAIN_URL", "orders", "the URL of a queue on SQS"),
    ],
)
def test_an_invalid_value_is_reported_with_its_variable(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} in the environment is '{value}': .*{message}"):
        sample_settings({**SAMPLE_VARIABLES, name: value})


def test_our_settings_take_precedence_over_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = sample_settings(SAMPLE_VARIABLES)
    assert replay_policy(with_sample(load_settings(), sample), "orders") == ReplayPolicy(
        replays_max=5, base_seconds=3.0, cap_seconds=345_600.0
    )
    monkeypatch.setenv("PENSTOCK_DEAD_LETTERS_MAX_REPLAYS", "3")  # set explicitly, although it is the default
    assert with_sample(load_settings(dead_letters_max_replay_wait=60.0), sample).model_dump(
        include={"dead_letters_max_replays", "dead_letters_replay_base", "dead_letters_max_replay_wait"}
    ) == {
        "dead_letters_max_replays": 3,
        "dead_letters_replay_base": 3.0,
        "dead_letters_max_replay_wait": 60.0,
    }


def test_a_queue_may_override_the_policy_or_be_excluded(working_folder: Path) -> None:
    (working_folder / "penstock.toml").write_text(
        "[dead_letters]\nmax_replays = 4\n[dead_letters.replay_queues.orders]\nmax_replays = 0\nreplay_base = 10\n"
        "[dead_letters.replay_queues.audit]\noff = true\n"
    )
    settings = load_settings()
    assert replay_policy(settings, "mails") == ReplayPolicy(replays_max=4)
    assert replay_policy(settings, "orders") == ReplayPolicy(replays_max=0, base_seconds=10)
    assert replay_policy(settings, URL) == ReplayPolicy(replays_max=0, base_seconds=10)
    assert replay_policy(settings, "audit") is None


def test_an_unknown_override_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DEAD_LETTERS_REPLAY_QUEUES", '{"orders": {"replay_max": 5}}')
    with pytest.raises(
        ConfigurationError, match=r"replay_queues \(from .*\) has an unknown part orders\.replay_max\. .*max_replays"
    ):
        load_settings()
    assert Settings.model_construct().dead_letters_replay_queues == {}
