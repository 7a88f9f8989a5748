"""Hashes of passwords by `penstock web --hash-password`, and addresses that need users."""

import io
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from penstock.web import passwords
from penstock.web.passwords import parsed_hash

USAGE, CONFIGURATION = 2, 78


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text("from penstock import App\napp = App.from_config(name='shop')\n")
    monkeypatch.setattr(passwords, "COST", 2**14)
    monkeypatch.setattr(passwords, "PARALLEL", 1)
    return tmp_path


def give(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_password_from_standard_input_is_hashed(penstock: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, "correct horse\n")
    result = penstock("web", "--hash-password")
    assert result.exit_code == 0
    assert parsed_hash(result.out.strip(), user="ann").matches("correct horse")
    assert "horse" not in result.out + result.err


def test_the_hash_as_json(penstock: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, "correct horse")
    document = penstock("web", "--hash-password", "--json").document
    assert parsed_hash(document["hash"], user="ann").matches("correct horse")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("second", "code"), [("correct horse", 0), ("correct house", USAGE)])
def test_at_a_terminal_a_password_is_typed_twice(
    second: str, code: int, penstock: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(("correct horse", second))
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("penstock.cli.web.getpass", lambda _: next(typed))
    assert penstock("web", "--hash-password").exit_code == code


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("", "has 0 characters"), ("short\n", "has 5 characters"), ("one line\ntwo\n", "several lines")],
)
def test_a_password_that_is_none_is_refused(
    text: str, sentence: str, penstock: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, text)
    result = penstock("web", "--hash-password")
    assert (result.exit_code, sentence in result.err) == (USAGE, True)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0"])
def test_other_hosts_are_not_served_without_users(address: str, penstock: Call) -> None:
    result = penstock("web", "shop:app", "--address", address)
    assert result.exit_code == CONFIGURATION
    assert "Every host that reaches" in result.err


def test_a_password_instead_of_its_hash_is_refused_and_not_shown(penstock: Call, here: Path) -> None:
    (here / "penstock.toml").write_text('[web]\nusers = { ann = "correct horse" }\n')
    result = penstock("web", "shop:app")
    assert result.exit_code == CONFIGURATION
    assert "The setting web.users.ann (from penstock.toml) is invalid" in result.err
    assert "horse" not in result.err
    shown = penstock("admin", "config", "show")
    assert "horse" not in shown.out + shown.err
