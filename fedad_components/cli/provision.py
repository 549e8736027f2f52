"""`fedad provision`: write the project, make kits, harden them, look at them before they start."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from fedad_components.cli.messages import complain
from fedad_components.resources import resource_dir

app = typer.Typer(no_args_is_help=True, help="Make, harden and check startup kits.")

_console = Console()

_GOES_TO = {
    "server": "the server's administrator",
    "client": "the IT of {org}",
    "admin": "{name} in person",
}


def _fail(error: object) -> typer.Exit:
    complain(error)
    return typer.Exit(1)


@app.command(epilog="Example:  fedad provision init consortium")
def init(
    directory: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder to write provisioning/ and custom/ into.")
    ],
    force: Annotated[bool, typer.Option(help="Overwrite files that exist.")] = False,
) -> None:
    """Write the provisioning project and the templates for a site's own code."""
    sources = {directory / name: resource_dir(name) for name in ("provisioning", "custom")}
    copies = {
        target / path.relative_to(source): path
        for target, source in sources.items()
        for path in sorted(source.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    existing = [str(path) for path in copies if path.exists()]
    if existing and not force:
        raise _fail(f"would overwrite {', '.join(existing)}; use --force or another folder")
    for path, source in copies.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)
        except OSError as error:
            raise _fail(f"{path}: cannot be written ({error.strerror}): expected a folder, or a new name") from None
        _console.print(str(path), highlight=False, soft_wrap=True)
    distributed, project = directory / "provisioning" / "distributed", directory / "provisioning" / "project.yml"
    _console.print(
        f"Next, for private keys that stay with their owners: docs/provisioning.md, with the files of {distributed}\n"
        f"Or, for all keys made on this machine: edit {project}, then run: fedad provision kits {project}",
        highlight=False,
        soft_wrap=True,
    )


@app.command(epilog="Example:  fedad provision kits consortium/provisioning/project.yml --out workspace")
def kits(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="Project file, such as provisioning/project.yml.")],
    out: Annotated[Path, typer.Option(help="Folder for the kits and for every private key: keep it private.")] = Path(
        "workspace"
    ),
) -> None:
    """Provision centrally, as nvflare provision does, and say whom each kit goes to."""
    from fedad_components.flare.provision import KitError, provision, read_project

    try:
        definition = read_project(project)
        folder = provision(definition, out)
    except KitError as error:
        raise _fail(error) from None
    table = Table("kit", "type", "goes to", title=str(folder))
    for participant in definition["participants"]:
        kind = participant["type"] if participant["type"] != "admin" else participant["role"]
        goes_to = _GOES_TO[participant["type"]].format(org=participant.get("org"), name=participant["name"])
        table.add_row(participant["name"], kind, goes_to)
    _console.print(table)
    _console.print(
        f"Send each kit, and only that kit, encrypted or in person: it holds a private key.\n"
        f"Never send, copy or back up unencrypted: {folder.parent / 'state'} (every private key, and the root's).",
        highlight=False,
        soft_wrap=True,
    )


@app.command(epilog="Example:  fedad provision harden /opt/fedad/hospital-a")
def harden(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="Startup kit: the folder that holds startup/ and local/.")],
) -> None:
    """Apply FedAD's policy to a kit, in place: for one made without FedADBuilder, or after an update."""
    from fedad_components.flare.provision import KitError
    from fedad_components.flare.provision import harden as harden_kit

    try:
        kind = harden_kit(kit)
    except KitError as error:
        raise _fail(error) from None
    _console.print(f"{kit}: hardened ({kind})", highlight=False, soft_wrap=True)


@app.command(
    epilog="Example:  fedad provision check /opt/fedad/hospital-a\n\n"
    "Exit codes: 0 every line is ok; 1 a line says no, or KIT is no kit."
)
def check(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="Startup kit: the folder that holds startup/ and local/.")],
    network: Annotated[bool, typer.Option(help="Also connect to the server.")] = True,
) -> None:
    """Look at a kit before starting it: python3, certificate, policy, catalogue, server. Changes nothing."""
    from fedad_components.flare.preflight import check as check_kit
    from fedad_components.flare.preflight import interpreter
    from fedad_components.flare.provision import KitError

    try:
        findings = [interpreter(), *check_kit(kit, network=network)]
    except KitError as error:
        raise _fail(error) from None
    table = Table("", "checked", Column("found", overflow="fold"), title=str(kit))
    for finding in findings:
        table.add_row("[green]ok[/]" if finding.ok else "[red]no[/]", finding.what, finding.detail)
    _console.print(table)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)
