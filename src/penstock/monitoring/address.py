"""HOST:PORT, as settings write where a process listens."""

from dataclasses import dataclass

from penstock.errors import ConfigurationError

PORT_MAX = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen. Port 0: any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def beside(self, number: int) -> "Address":
        """That of the process with this number, the first being 0. Raises `ConfigurationError` beyond the last port."""
        port = self.port + number if self.port else 0
        if port > PORT_MAX:
            raise ConfigurationError(
                f"Each process answers at a port of its own, and from {self} on there are not that many; begin at a "
                "lower one."
            )
        return Address(host=self.host, port=port)


def address_of(text: str, *, setting: str) -> Address:
    """HOST:PORT, with IPv6 in brackets. Raises `ConfigurationError`, which names the setting."""
    host, colon, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    fits = bool(colon and host) and (bracketed or ":" not in host) and port.isascii() and port.isdigit()
    if not fits or int(port) > PORT_MAX or host == "[]":
        raise ConfigurationError(
            f"The setting {setting} is {text!r}, which is not HOST:PORT, as in 127.0.0.1:9464, 0.0.0.0:9464 (all "
            "addresses of the host) or [::1]:9464."
        )
    return Address(host=host[1:-1] if bracketed else host, port=int(port))
