"""Hash the passwords of the dashboard's users, and verify them.

The hash is scrypt's, from the standard library, with its parameters: `scrypt:N:R:P:SALT:KEY`. It has no character that
a shell or an environment file treats specially. Stronger parameters apply to new hashes; old ones stay valid.
"""

import base64
import hashlib
import hmac
import secrets
import unicodedata
from binascii import Error as Base64Error
from dataclasses import dataclass

from penstock.errors import ConfigurationError

# OWASP's password storage cheat sheet (2025): one of its equal choices for scrypt, with 32 MiB and about 0.3 s here.
COST, BLOCK_SIZE, PARALLEL = 2**15, 8, 3
MEMORY_BYTES_MAX = 256 * 1024**2
SALT_BYTES, KEY_BYTES = 16, 32
PASSWORD_CHARACTERS_MAX = 1_000

_SCHEME = "scrypt"


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordHash:
    """A parsed hash."""

    cost: int
    block_size: int
    parallel: int
    salt: bytes
    key: bytes

    def __str__(self) -> str:
        numbers = f"{self.cost}:{self.block_size}:{self.parallel}"
        return f"{_SCHEME}:{numbers}:{_encoded(self.salt)}:{_encoded(self.key)}"

    def key_of(self, password: str) -> bytes:
        """Return the key that scrypt derives from a password with these parameters. Takes tenths of a second."""
        return hashlib.scrypt(
            unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass"),
            salt=self.salt,
            n=self.cost,
            r=self.block_size,
            p=self.parallel,
            maxmem=2 * MEMORY_BYTES_MAX,
            dklen=KEY_BYTES,
        )

    def matches(self, password: str) -> bool:
        """Return True for the password that was hashed. Takes as long for any other one."""
        return hmac.compare_digest(self.key_of(password), self.key)


def hashed(password: str) -> PasswordHash:
    """Return a new hash of a password, with a random salt."""
    blank = PasswordHash(
        cost=COST, block_size=BLOCK_SIZE, parallel=PARALLEL, salt=secrets.token_bytes(SALT_BYTES), key=b""
    )
    return with_key(blank, blank.key_of(password))


def with_key(hash: PasswordHash, key: bytes) -> PasswordHash:
    """Return a hash with the same parameters and salt, and another key."""
    return PasswordHash(cost=hash.cost, block_size=hash.block_size, parallel=hash.parallel, salt=hash.salt, key=key)


def parsed_hash(text: str, *, user: str) -> PasswordHash:
    """Parse the hash of a user. Raises `ConfigurationError`, which does not show it."""
    try:
        scheme, cost, block_size, parallel, salt, key = text.split(":")
        found = PasswordHash(
            cost=int(cost), block_size=int(block_size), parallel=int(parallel), salt=_decoded(salt), key=_decoded(key)
        )
    except (ValueError, Base64Error):
        raise _unusable(user, "it is not what `penstock web --hash-password` prints") from None
    if scheme != _SCHEME or len(found.key) != KEY_BYTES or len(found.salt) < SALT_BYTES:
        raise _unusable(user, "it is not what `penstock web --hash-password` prints")
    if found.cost < 2**14 or found.cost & (found.cost - 1) or not 1 <= found.parallel <= 16:
        raise _unusable(user, "its parameters are too weak or not those of scrypt")
    if found.block_size < 8 or 128 * found.cost * found.block_size > MEMORY_BYTES_MAX:
        raise _unusable(user, f"it would need more than {MEMORY_BYTES_MAX // 1024**2} MiB, or is too weak")
    return found


def _unusable(user: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"The setting web.users has a hash for {user} that cannot be used: {why}. Make a new one with "
        "`penstock web --hash-password`."
    )


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
