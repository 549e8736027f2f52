"""The packet: one ZIP for an auditor, an RO-Crate 1.1 with everything that a job's logs need to be judged elsewhere.

Logs go in whole, since a part of a chain cannot be verified. Files come from lists of known names, and a private key is
refused wherever it stands. The same copies give the same bytes: the packet's date is that of its last event.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedad_components import __version__
from fedad_components.audit.event import Event, EventError, canonical, moment, parse
from fedad_components.audit.facts import Job
from fedad_components.audit.findings import Finding, Verification
from fedad_components.audit.keys import load_root
from fedad_components.audit.reading import BadLine, Chain, file_number, find_chains, read, read_lines, torn_number
from fedad_components.audit.report import Report, make_report, render
from fedad_components.audit.sbom import sbom
from fedad_components.files import alone_in, replacing, sha256_of

METADATA = "ro-crate-metadata.json"
LOGS, REPORT, VERIFICATION, SBOM = "logs", "report.html", "verification.json", "sbom.cdx.json"
_CONTEXT = "https://w3id.org/ro/crate/1.1"
_DATE = (1980, 1, 1, 0, 0, 0)
"""Of every entry: the first that a ZIP knows."""
_BLOCK = 2**20
_KEY = b"PRIVATE KEY-----"
_RESULT = ("model_card.md", "config.json", "rounds.jsonl", "evaluation.json")
_JOB_FILES = re.compile(r"[A-Za-z0-9_.@+=-]+\.json|\.__nvfl_sig\.json|\.__nvfl_submitter\.crt")
"""What FedAD exports, and what FLARE adds when it signs a job."""
_LARGEST = 16 * 2**20
"""Of a file that is not a log."""

_TYPES = {
    ".jsonl": "application/jsonl",
    ".json": "application/json",
    ".html": "text/html",
    ".md": "text/markdown",
    ".pem": "application/x-pem-file",
    ".crt": "application/x-pem-file",
    ".txt": "text/plain",
}

_README = """\
# Audit packet of job {job}

Made by FedAD {version} from the compliance logs of: {sites}.

1. Get the consortium's root certificate in another way than with this packet, and compare it with `rootCA.pem` here.
2. Verify, on any computer with FedAD, without a network: `fedad audit verify . --root-ca rootCA.pem`
3. Compare with `{verification}`, which is what that command said when the packet was made, and read `{report}`.

The logs are whole: they hold other jobs as well. `job/events.jsonl` is an extract to read, and proves nothing.
`sha256sums.txt` shows whether the packet is as it was made (`sha256sum -c sha256sums.txt`), not who made it.
`{sbom}` lists the software of the computer that made the packet; that of the parties is in their logs.
"""


class PacketError(ValueError):
    """A packet that cannot be made; the message names the file or job, and the fix."""


@dataclass(frozen=True)
class Packet:
    """What was made.

    Attributes:
        differing: files of the job's folder that are not those of the ``job_submitted`` event.
    """

    verification: Verification
    files: int
    differing: tuple[str, ...]


def write_packet(
    out: Path,
    job_id: str,
    paths: Sequence[str | Path],
    *,
    root_ca: Path | None = None,
    result: Path | None = None,
    job_folder: Path | None = None,
) -> Packet:
    """Write the packet of a job.

    Args:
        out: the ZIP.
        job_id: a job that the logs name.
        paths: logs, as for verification.
        root_ca: the consortium's root certificate.
        result: folder ``fedad/`` of the downloaded job: its model card, configuration and rounds go in, no weights.
        job_folder: the job as it was submitted.

    Raises:
        PacketError: if the logs do not name the job, or a file may not go into a packet.
        ReadError, VerifyError, KeysError: if logs or root certificate cannot be used.
        OSError: if something cannot be read or written.
    """
    with tempfile.TemporaryDirectory(prefix="fedad-packet-") as temporary:
        folder = Path(temporary).resolve()
        _copy_logs(find_chains(paths), folder)
        if root_ca:
            _write(folder / "rootCA.pem", load_root(root_ca).encode("ascii"))
        # Verified is what is in the packet, not what it was copied from.
        when = max((event.time for event in _events([folder])), default=None)
        if when is None:
            raise PacketError("no event in these logs: `fedad audit verify` says what is wrong with them")
        report = make_report([folder / LOGS], root_ca, moment(when))
        report = replace(report, verification=_relative(report.verification, folder))
        job = report.history.jobs.get(job_id)
        if job is None:
            known = ", ".join(map(repr, sorted(report.history.jobs))) or "none"
            raise PacketError(f"no event of job {job_id!r} in these logs; they name: {known}")
        differing = _write_job(folder, job, job_folder)
        _write_result(folder, result)
        _write_evidence(folder, report, job_id)
        _write_metadata(folder, job, when, report)
        files = _files(folder)
        _zip(folder, files, out)
    return Packet(report.verification, len(files), differing)


# -- what goes in ------------------------------------------------------------------------------------------------------


def _copy_logs(chains: Iterable[Chain], folder: Path) -> None:
    """Each log into a folder of its own, named after its party; nobody writes it meanwhile."""
    for chain in chains:
        name = base = _safe_name(_party(chain))
        number = 1
        while (target := folder / LOGS / name).exists():
            number += 1
            name = f"{base}-{number}"
        target.mkdir(parents=True)
        with alone_in(chain.folder):
            torn = sorted(
                path for path in chain.folder.iterdir() if torn_number(path) is not None and not path.is_fifo()
            )
            for source in (*chain.files, *torn):
                if source.is_symlink() or (source not in torn and file_number(source) is None):
                    raise PacketError(f"{source}: expected a log's file under its own name, audit-000001.jsonl")
                _refuse_key(source)
                shutil.copyfile(source, target / source.name)


def _party(chain: Chain) -> str:
    """Whose log it is, from the first line that says so; a file without any is no log."""
    for file in chain.files:
        for line in read_lines(file):
            try:
                return parse(line.content).event.site
            except EventError:
                continue
    raise PacketError(f"{chain.files[0]}: no event in it; expected a log")


def _write_job(folder: Path, job: Job, source: Path | None) -> tuple[str, ...]:
    """The job's files as they were submitted, the digests that the log has of them, and its events."""
    target = folder / "job"
    target.mkdir()
    events = (event for event in _events([folder / LOGS]) if event.job_id == job.job_id)
    by_time = sorted(events, key=lambda event: event.time)
    _write(target / "events.jsonl", (event.line() + b"\n" for event in by_time))
    digests: dict[str, str] = {}
    if source is not None:
        for path in _job_files(source):
            relative = path.relative_to(source).as_posix()
            content = _content(path)
            _write(target / "files" / relative, content)
            digests[relative] = sha256(content).hexdigest()
    differing = tuple(sorted(name for name, digest in digests.items() if job.files and job.files.get(name) != digest))
    facts = {
        "job_id": job.job_id,
        "name": job.name,
        "experiment": job.experiment,
        "submitter": job.submitter.model_dump(exclude_none=True) if job.submitter else None,
        "submitted": job.submitted,
        "digest": job.digest,
        "files_in_the_log": job.files,
        "files_here": digests,
        "differing": list(differing),
    }
    _write(target / "job.json", _json(facts))
    return differing


def _job_files(folder: Path) -> Iterator[Path]:
    def give_up(error: OSError) -> None:
        raise error

    for place, folders, names in os.walk(folder, onerror=give_up):
        for name in sorted([*folders, *names]):
            path = Path(place, name)
            if path.is_symlink() or (name in names and not (path.is_file() and _JOB_FILES.fullmatch(name))):
                raise PacketError(f"{path}: no file of a job that FedAD exports; give the folder with meta.json alone")
        yield from (Path(place, name) for name in sorted(names))


def _write_result(folder: Path, result: Path | None) -> None:
    if result is None:
        return
    found = [result / name for name in _RESULT if (result / name).is_file()]
    if not found:
        raise PacketError(f"{result}: none of {', '.join(_RESULT)} is there; expected the folder fedad/ of a result")
    for path in found:
        _write(folder / "result" / path.name, _content(path))


def _write_evidence(folder: Path, report: Report, job_id: str) -> None:
    """What the logs hold, taken out for those who read it without FedAD."""
    for certificate in report.history.certificates.values():
        name = f"{_safe_name(certificate.name)}-{certificate.fingerprint[:12]}.pem"
        _write(folder / "certificates" / name, certificate.pem.encode("ascii"))
    _write(folder / "checkpoints.jsonl", _checkpoints(folder / LOGS))
    _write(folder / VERIFICATION, report.verification.model_dump_json(indent=2).encode("utf-8"))
    _write(folder / REPORT, render(report).encode("utf-8"))
    _write(folder / SBOM, _json(sbom()))
    readme = _README.format(
        job=_safe_name(job_id),
        version=__version__,
        sites=", ".join(map(_safe_name, report.verification.sites)),
        verification=VERIFICATION,
        report=REPORT,
        sbom=SBOM,
    )
    _write(folder / "README.md", readme.encode("utf-8"))


def _checkpoints(logs: Path) -> Iterator[bytes]:
    """Every signed checkpoint, of a log itself or of a peer, and who holds it."""
    for event in _events([logs]):
        if event.checkpoint is not None:
            yield canonical({"held_by": event.site, "checkpoint": event.checkpoint.model_dump()}) + b"\n"


# -- RO-Crate ----------------------------------------------------------------------------------------------------------


def _write_metadata(folder: Path, job: Job, when: str, report: Report) -> None:
    """Metadata last: it describes every other file."""
    files = [_entity(folder, name) for name in _files(folder)]
    _write(folder / "sha256sums.txt", "".join(f"{one['sha256']}  {one['@id']}\n" for one in files).encode("utf-8"))
    files.append(_entity(folder, "sha256sums.txt"))
    answer = "verified" if report.verification.verified else "NOT verified"
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"Audit packet of job {job.job_id}",
        "description": f"Compliance logs of {', '.join(report.verification.sites)}, whole, with what is needed to "
        f"verify them elsewhere. When the packet was made, they were {answer}.",
        "datePublished": when,
        "license": "Not stated: the consortium decides who may have it.",
        "hasPart": [{"@id": one["@id"]} for one in files],
        "mentions": [{"@id": f"#{_safe_name(site)}"} for site in report.verification.sites],
    }
    parties = [
        {"@id": f"#{_safe_name(site)}", "@type": "Organization", "name": site} for site in report.verification.sites
    ]
    head = {
        "@id": METADATA,
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": {"@id": _CONTEXT},
    }
    context = [f"{_CONTEXT}/context", {"sha256": "https://schema.org/sha256"}]
    _write(folder / METADATA, _json({"@context": context, "@graph": [head, root, *files, *parties]}))


def _entity(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    return {
        "@id": name,
        "@type": "File",
        "name": path.name,
        "contentSize": str(path.stat().st_size),
        "encodingFormat": _TYPES.get(path.suffix, "application/octet-stream"),
        "sha256": sha256_of(path),
    }


# -- files -------------------------------------------------------------------------------------------------------------


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _zip(folder: Path, files: Sequence[str], out: Path) -> None:
    """Sorted, without times, owners or rights: the same files are the same bytes."""
    with replacing(out) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in files:
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type, info.external_attr, info.create_system = zipfile.ZIP_DEFLATED, 0o600 << 16, 3
            _refuse_key(folder / name)
            with (folder / name).open("rb") as source, archive.open(info, "w", force_zip64=True) as target:
                shutil.copyfileobj(source, target, _BLOCK)


def _refuse_key(path: Path) -> None:
    """A private key in PEM goes into no packet, whatever file it is in."""
    with path.open("rb") as stream:
        end = b""
        while block := stream.read(_BLOCK):
            if _KEY in end + block:
                raise PacketError(f"{path.name}: it holds a private key, which belongs into no packet")
            end = block[-len(_KEY) :]


def _content(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
        content = stream.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise PacketError(f"{path}: more than {_LARGEST} bytes; expected a configuration or a text")
    return content


def _write(path: Path, content: bytes | Iterable[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        stream.writelines([content] if isinstance(content, bytes) else content)


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode("utf-8") + b"\n"


def _events(paths: Sequence[Path]) -> Iterator[Event]:
    bad: list[BadLine] = []
    return (located.event for located in read(paths, bad))


def _relative(verification: Verification, folder: Path) -> Verification:
    """With the paths that the files have in the packet."""

    def shorter(path: str) -> str:
        return Path(path).relative_to(folder).as_posix() if path else path

    def moved(findings: Iterable[Finding]) -> list[Finding]:
        return [one.model_copy(update={"file": shorter(one.file)}) for one in findings]

    changes = {
        "files": [shorter(path) for path in verification.files],
        "findings": moved(verification.findings),
        "warnings": moved(verification.warnings),
    }
    return verification.model_copy(update=changes)


def _safe_name(name: str) -> str:
    """Of a file, or in a sentence: nothing that a path or Markdown would read in its own way."""
    return re.sub(r"[^A-Za-z0-9@_.-]", "_", name).lstrip(".")[:100] or "_"
