"""Verify user names and passwords: slowly for a client that guesses, quickly for one that was verified recently.

A correct password is remembered for some minutes as a keyed digest, in memory. Each wrong one doubles the wait of that
client for that user. Hashing runs in two threads of its own, so guessing neither delays pages nor fills the memory. An
unknown user takes as long as a wrong password.
"""

import hashlib
import hmac
import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_bytes

from anyio import CapacityLimiter, Lock, to_thread

from penstock.messaging.clock import Clock
from penstock.web.passwords import PASSWORD_CHARACTERS_MAX, PasswordHash, hashed, parsed_hash, with_key

REMEMBERED_SECONDS = 300.0
REMEMBERED_MAX = 1_000
FREE_FAILURES = 2  # without a wait
WAIT_SECONDS_MAX = 60.0
CLIENTS_MAX = 10_000  # pairs of client and user whose failures are remembered
HASHING_THREADS = 2
WAITING_MAX = 20  # logins that wait for these threads

log = logging.getLogger("penstock.web")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginResult:
    """The result of a login. A refused one may be tried again after ``wait_seconds``."""

    accepted: bool
    wait_seconds: float = 0.0


ACCEPTED, WRONG = LoginResult(accepted=True), LoginResult(accepted=False)


@dataclass(slots=True)
class _LoginFailures:
    """The failures in a row of one client with one user name. The event loop's thread writes it."""

    lock: Lock = field(default_factory=Lock)  # one attempt at a time, so that none can precede the wait
    count: int = 0
    blocked_until: float = 0.0  # monotonic


class Logins:
    """The users with their passwords. For one event loop."""

    def __init__(self, users: Mapping[str, str], *, clock: Clock) -> None:
        self._hashes = {name: parsed_hash(text, user=name) for name, text in users.items()}
        self._nobody = _unknown_like(next(iter(self._hashes.values()), None))
        self._clock = clock
        self._secret = token_bytes(32)
        self._remembered: OrderedDict[bytes, float] = OrderedDict()  # until when (monotonic), by digest
        self._failures: OrderedDict[tuple[str, str], _LoginFailures] = OrderedDict()
        self._hashing = CapacityLimiter(HASHING_THREADS)
        self._waiting = 0

    async def verify(self, name: str, password: str, *, client: str) -> LoginResult:
        """Verify the password of a user. ``client`` is the address that sent it."""
        digest = self._digest(name, password)
        if self._is_remembered(digest):
            return ACCEPTED
        if self._waiting >= WAITING_MAX:
            return LoginResult(accepted=False, wait_seconds=1.0)
        failures = self._failures_of(client, name)  # after the refusal: a flood must not push out failures of others
        self._waiting += 1
        try:
            async with failures.lock:
                return await self._verify(name, password, digest, failures, client=client)
        finally:
            self._waiting -= 1

    async def _verify(
        self, name: str, password: str, digest: bytes, failures: _LoginFailures, *, client: str
    ) -> LoginResult:
        if self._is_remembered(digest):  # by the attempt before this one
            return ACCEPTED
        wait_seconds = failures.blocked_until - self._clock.monotonic()
        if wait_seconds > 0:
            return LoginResult(accepted=False, wait_seconds=wait_seconds)
        known = self._hashes.get(name)
        expected = self._nobody if known is None else known
        matches = await to_thread.run_sync(expected.matches, password[:PASSWORD_CHARACTERS_MAX], limiter=self._hashing)
        if matches and known is not None and len(password) <= PASSWORD_CHARACTERS_MAX:
            self._remember(digest)
            self._failures.pop((client, name), None)
            return ACCEPTED
        self._count_failure(failures)
        # The name of an unknown user may be a password that was typed into the wrong field.
        shown = "an unknown user" if known is None else f"the user {name}"
        log.warning("Login refused: %s from %s, failure %d in a row", shown, client, failures.count)
        return WRONG

    def _count_failure(self, failures: _LoginFailures) -> None:
        failures.count += 1
        beyond = failures.count - FREE_FAILURES
        if beyond > 0:
            wait_seconds = min(2.0 ** min(beyond - 1, 10), WAIT_SECONDS_MAX)
            failures.blocked_until = self._clock.monotonic() + wait_seconds

    def _failures_of(self, client: str, name: str) -> _LoginFailures:
        found = self._failures.setdefault((client, name), _LoginFailures())
        self._failures.move_to_end((client, name))
        while len(self._failures) > CLIENTS_MAX:
            self._failures.popitem(last=False)
        return found

    def _digest(self, name: str, password: str) -> bytes:
        text = f"{len(name)}:{name}:{password}".encode("utf-8", "surrogatepass")
        return hmac.digest(self._secret, text, hashlib.sha256)

    def _is_remembered(self, digest: bytes) -> bool:
        return self._remembered.get(digest, 0.0) > self._clock.monotonic()

    def _remember(self, digest: bytes) -> None:
        self._remembered[digest] = self._clock.monotonic() + REMEMBERED_SECONDS
        self._remembered.move_to_end(digest)
        while len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)


def _unknown_like(known: PasswordHash | None) -> PasswordHash:
    """Return a hash that no password has, as slow as that of a user."""
    return with_key(hashed("") if known is None else known, token_bytes(32))
