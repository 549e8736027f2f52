"""How every command says that it failed: on standard error, in the error's own words."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


def complain(message: object, what: str = "error") -> None:
    """Print ``error: message``. The message is text, not Rich's markup: a path may hold square brackets."""
    Console(stderr=True).print(Text.assemble((f"{what}: ", "red"), str(message)), soft_wrap=True)
