"""`fedad audit`: what an auditor does with the compliance logs; one module a command, added to the group below."""

from __future__ import annotations

import typer

from fedad_components.cli.audit import export, packet, query, record, report, retention, schema, verify

app = typer.Typer(no_args_is_help=True, help="Verify, search and export the compliance logs of server and sites.")
app.command("verify", epilog=verify.EPILOG)(verify.verify)
app.command("query", epilog=query.EPILOG)(query.query)
app.command("report", epilog=report.EPILOG)(report.report)
app.command("export", epilog=export.EPILOG)(export.export)
app.command("packet", epilog=packet.EPILOG)(packet.packet)
app.command("retention", epilog=retention.EPILOG)(retention.retention)
app.command("record", epilog=record.EPILOG)(record.record)
app.command("schema", epilog=schema.EPILOG)(schema.schema)
