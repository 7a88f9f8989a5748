"""Numbers with their nouns, for messages to people."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number and its noun: 1 object, 2,000 objects."""
    return worded(number, f"{{}} {noun}", f"{{}} {plural or noun + 's'}")


def worded(number: int, one: str, many: str) -> str:
    """Return the text for 1 or for any other number, with the number in place of ``{}``."""
    return (one if number == 1 else many).format(f"{number:,}")
