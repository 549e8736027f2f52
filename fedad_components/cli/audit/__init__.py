"""`fedad audit`: what an auditor does with the compliance logs; one module a command, added to the group below."""

from __future__ import annotations

import typer

from fedad_components.cli.audit import verify

app = typer.Typer(no_args_is_help=True, help="Verify the compliance logs of server and sites.")
app.command("verify", epilog=verify.EPILOG)(verify.verify)
