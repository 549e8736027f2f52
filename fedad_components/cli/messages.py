"""How every command says that it failed: on standard error, in the error's own words."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


def complain(message: object, what: str = "error") -> None:
    """Print ``error: message``. The message is text, not Rich's markup: a path may hold square brackets.

    A path may hold as well what a terminal would obey: that is escaped.
    """
    text = "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in str(message))
    Console(stderr=True).print(Text.assemble((f"{what}: ", "red"), text), soft_wrap=True)
