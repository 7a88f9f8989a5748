"""Passwords and their hashes, and logins: who is accepted, who has to wait, and what is logged."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import anyio
import pytest

from penstock.config import Settings, shown
from penstock.errors import ConfigurationError
from penstock.testing.fake_clock import FakeClock
from penstock.web import logins, passwords
from penstock.web.logins import REMEMBERED_SECONDS, WAIT_SECONDS_MAX, LoginResult, Logins
from penstock.web.passwords import PasswordHash, hashed, parsed_hash

CLIENT = "192.0.2.1"


@contextmanager
def weak_hashes() -> Iterator[None]:
    """Hash with the weakest parameters that are accepted, to keep the tests fast."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "COST", 2**14)
        patch.setattr(passwords, "PARALLEL", 1)
        yield


@pytest.fixture
def fast() -> Iterator[None]:
    with weak_hashes():
        yield


@pytest.fixture(scope="module")
def users() -> dict[str, str]:
    with weak_hashes():
        return {"ann": str(hashed("correct horse")), "bob": str(hashed("battery staple"))}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class Door:
    """Logins, with a count of the hashes that were computed."""

    def __init__(self, users: dict[str, str], clock: FakeClock, patch: pytest.MonkeyPatch) -> None:
        self.logins = Logins(users, clock=clock)
        self.hashes = 0
        compute = PasswordHash.key_of

        def counted(hash: PasswordHash, password: str) -> bytes:
            self.hashes += 1
            return compute(hash, password)

        patch.setattr(PasswordHash, "key_of", counted)

    def verify(self, name: str, password: str, client: str = CLIENT) -> LoginResult:
        async def verify() -> LoginResult:
            return await self.logins.verify(name, password, client=client)

        return anyio.run(verify)


@pytest.fixture
def door(users: dict[str, str], clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Door:
    return Door(users, clock, monkeypatch)


@pytest.mark.usefixtures("fast")
def test_a_hash_accepts_its_password_and_no_other() -> None:
    found = parsed_hash(str(hashed("pässwörd ☃")), user="ann")
    assert found.matches("pässwörd ☃")
    assert found.matches("pa\u0308sswo\u0308rd ☃")  # the same, composed differently
    assert not found.matches("pässwörd")
    assert not found.matches("")


@pytest.mark.usefixtures("fast")
def test_two_hashes_of_one_password_differ() -> None:
    assert str(hashed("x")) != str(hashed("x"))


def test_new_hashes_are_strong_and_need_no_quotes() -> None:
    text = str(hashed("x"))
    assert text.startswith("scrypt:32768:8:3:")
    assert re.fullmatch(r"[\w:-]+", text, re.ASCII)
    assert Settings(web_users={"ann": text}).web_users == {"ann": text}


@pytest.mark.parametrize(
    "text",
    [
        "correct horse",
        "scrypt:1024:8:1:{salt}:{key}",  # too weak
        "scrypt:32767:8:1:{salt}:{key}",  # no power of two
        "scrypt:32768:0:1:{salt}:{key}",
        "scrypt:32768:8:0:{salt}:{key}",
        "scrypt:8388608:8:1:{salt}:{key}",  # 8 GiB
        "scrypt:32768:8:1:c2hvcnQ:{key}",
        "scrypt:32768:8:1:{salt}:c2hvcnQ",
        "bcrypt:32768:8:1:{salt}:{key}",
        "scrypt:32768:8:1:{salt}:????",
    ],
)
def test_a_hash_that_cannot_be_used_is_refused_without_being_shown(text: str) -> None:
    text = text.format(salt="c2FsdHNhbHRzYWx0c2FsdA", key="aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNoaGFzaGhhc2g")
    with pytest.raises(ConfigurationError, match=r"a hash for ann that cannot be used: .*--hash-password") as caught:
        parsed_hash(text, user="ann")
    assert text not in str(caught.value)


def test_the_hashes_of_users_are_masked_and_their_names_are_not(users: dict[str, str]) -> None:
    assert shown("web_users", users) == {"ann": "***", "bob": "***"}


def test_the_right_password_is_accepted_and_remembered_for_some_minutes(door: Door, clock: FakeClock) -> None:
    assert [door.verify("ann", "correct horse").accepted for _ in range(3)] == [True] * 3
    assert door.hashes == 1
    clock.advance(REMEMBERED_SECONDS - 1)
    assert door.verify("ann", "correct horse").accepted
    assert door.hashes == 1
    clock.advance(2)
    assert door.verify("ann", "correct horse").accepted
    assert door.hashes == 2


def test_a_remembered_password_lets_in_neither_another_user_nor_another_password(door: Door) -> None:
    assert door.verify("ann", "correct horse").accepted
    assert not door.verify("bob", "correct horse").accepted
    assert not door.verify("ann", "correct horse ").accepted
    assert not door.verify("ann", "").accepted


def test_an_unknown_user_costs_a_hash_with_the_same_parameters(door: Door) -> None:
    assert not door.verify("eve", "correct horse").accepted
    assert door.hashes == 1
    nobody, ann = door.logins._nobody, door.logins._hashes["ann"]
    assert replace(nobody, salt=b"", key=b"") == replace(ann, salt=b"", key=b"")


def test_guessing_has_to_wait_longer_each_time_and_costs_no_hash_meanwhile(door: Door, clock: FakeClock) -> None:
    waits = []
    for guess in range(12):
        assert door.verify("ann", f"guess {guess}") == logins.WRONG
        hashes = door.hashes
        wait_seconds = door.verify("ann", "another").wait_seconds if guess >= 2 else 0.0
        assert door.hashes == hashes + (guess < 2 and 0)
        waits.append(wait_seconds)
        clock.advance(wait_seconds)
    assert waits == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert waits[-1] == WAIT_SECONDS_MAX


def guess_wrong(door: Door, times: int, name: str = "ann", client: str = CLIENT) -> None:
    for number in range(times):
        assert not door.verify(name, f"guess {number}", client=client).accepted


def test_while_a_client_has_to_wait_even_the_right_password_is_refused(door: Door, clock: FakeClock) -> None:
    guess_wrong(door, 3)
    assert door.verify("ann", "correct horse") == LoginResult(accepted=False, wait_seconds=1.0)
    clock.advance(1.0)
    assert door.verify("ann", "correct horse").accepted
    assert not door.verify("ann", "wrong once more").wait_seconds  # the count began anew


def test_guessing_delays_neither_other_clients_nor_users_that_are_logged_in(door: Door) -> None:
    assert door.verify("ann", "correct horse").accepted
    guess_wrong(door, 3)
    assert door.verify("ann", "correct horse").accepted
    assert door.verify("bob", "battery staple").accepted
    guess_wrong(door, 3, name="bob")
    assert door.verify("bob", "battery staple", client="192.0.2.2").accepted


def test_guesses_at_the_same_time_wait_for_each_other(door: Door) -> None:
    async def guess_at_once() -> list[LoginResult]:
        found: list[LoginResult] = []

        async def guess(number: int) -> None:
            found.append(await door.logins.verify("ann", f"guess {number}", client=CLIENT))

        async with anyio.create_task_group() as group:
            for number in range(15):
                group.start_soon(guess, number)
        return found

    found = anyio.run(guess_at_once)
    assert sum(result == logins.WRONG for result in found) == 3
    assert door.hashes == 3


def test_a_flood_of_logins_is_refused_at_once(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "WAITING_MAX", 0)
    assert door.verify("ann", "correct horse").wait_seconds
    assert door.hashes == 0


def test_a_flood_of_names_does_not_end_the_wait_of_a_guesser(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "CLIENTS_MAX", 3)
    guess_wrong(door, 3)
    with monkeypatch.context() as flooded:
        flooded.setattr(logins, "WAITING_MAX", 0)
        for number in range(10):
            assert door.verify(f"user-{number}", "x").wait_seconds
    assert door.verify("ann", "guess").wait_seconds
    assert door.hashes == 3


def test_the_failures_of_many_clients_take_bounded_memory(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "CLIENTS_MAX", 3)
    for number in range(6):
        guess_wrong(door, 1, client=f"192.0.2.{number}")
    assert len(door.logins._failures) == 3


def test_failures_are_logged_without_the_password(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="penstock.web"):
        guess_wrong(door, 1)
        door.verify("my secret password", "x")  # typed into the wrong field
    assert [record.getMessage() for record in caplog.records] == [
        "Login refused: the user ann from 192.0.2.1, failure 1 in a row",
        "Login refused: an unknown user from 192.0.2.1, failure 1 in a row",
    ]
    assert "guess" not in caplog.text


def test_a_password_of_a_megabyte_is_refused(door: Door) -> None:
    assert not door.verify("ann", "correct horse" + "x" * 1_000_000).accepted


def test_without_users_every_login_is_refused(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Door({}, clock, monkeypatch).verify("ann", "").accepted
