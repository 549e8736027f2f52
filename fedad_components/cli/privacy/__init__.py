"""`fedad privacy`: plan an experiment's guarantee, look at a site's ledger, audit the mechanism."""

from __future__ import annotations

import typer

from fedad_components.cli.privacy import audit, ledger, plan

app = typer.Typer(no_args_is_help=True, help="Plan a guarantee, look at a site's ledger, audit the mechanism.")
app.command("plan", epilog=plan.EPILOG)(plan.plan)
app.command("audit", epilog=audit.EPILOG)(audit.audit)
app.add_typer(ledger.app, name="ledger")
