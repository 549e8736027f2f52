"""`fedad audit packet`: a job's logs and all that is needed to judge them, as one file for an auditor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedad_components.cli.audit.opening import LogPaths, OptionError, RootCertificate, check_out, log_access
from fedad_components.cli.messages import complain

EPILOG = (
    "Example:  fedad audit packet copies/ --job 0c9e6a5e-1111 --root-ca rootCA.pem --result result/fedad "
    "--job-folder jobs/fedad_job --out packet.zip\n\n"
    "Exit codes: 0 written, and its logs are verified; 1 written, and its report says what is wrong; 2 a path or "
    "option cannot be used, or a live log cannot be written."
)


def packet(
    paths: LogPaths,
    job: Annotated[str, typer.Option(metavar="ID", help="The job's id, as in the logs.")],
    out: Annotated[Path, typer.Option(metavar="FILE.zip", help="File to write; it must not exist.")],
    root_ca: RootCertificate = None,
    result: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder fedad/ of the downloaded job: model card, configuration, rounds; no weights."
        ),
    ] = None,
    job_folder: Annotated[
        Path | None, typer.Option("--job-folder", metavar="DIR", help="The job's folder, as it was submitted.")
    ] = None,
) -> None:
    """Pack the logs of a job with certificates, job files, bill of materials and report: an RO-Crate in a ZIP.

    The logs go in whole, with other jobs: a part of a chain cannot be
    verified. No private key goes in. The same copies give the same bytes.
    """
    from fedad_components.audit.event import Kind
    from fedad_components.audit.keys import KeysError
    from fedad_components.audit.log import AuditError
    from fedad_components.audit.packet import PacketError, write_packet
    from fedad_components.audit.reading import ReadError
    from fedad_components.audit.verify import VerifyError
    from fedad_components.job_reader import printable

    try:
        check_out(out, paths)
        log_access(paths, Kind.LOG_EXPORTED, "audit packet")
        made = write_packet(out, job, paths, root_ca=root_ca, result=result, job_folder=job_folder)
    except (AuditError, KeysError, OptionError, PacketError, ReadError, VerifyError, OSError) as error:
        complain(error)
        raise typer.Exit(2) from None
    for name in made.differing:
        complain(f"{printable(name)}: not the file that the log says was submitted", "warning")
    findings = made.verification.findings
    answer = "verified" if made.verification.verified else f"NOT verified: {len(findings)} findings"
    Console(markup=False, highlight=False).print(f"{out}: {made.files} files; logs {answer}", soft_wrap=True)
    if findings:
        raise typer.Exit(1)
