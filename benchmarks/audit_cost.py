"""Cost of the compliance log: events a second, seconds for a million events' verification, and its share of a round.

    python benchmarks/audit_cost.py --round-seconds 60       # a round's seconds as measured on your federation
    python benchmarks/audit_cost.py --verify 100000 --json audit_cost.json

Events are a task's: job, round, payload with its hash. "durable" waits for the disk (fsync) with each event, which is
what a round's events do. "CPU" is the process's own time, for machines that do other work meanwhile: what a core would
do that is idle otherwise. Verification reads a log of that many events with a signed checkpoint every
EVENTS_A_CHECKPOINT, checked against a root certificate.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from fedad_components.audit.checkpoint import write_checkpoint
from fedad_components.audit.event import Kind, Payload
from fedad_components.audit.keys import Signer
from fedad_components.audit.log import AuditLog
from fedad_components.audit.verify import verify

SITE = "hospital-a"
EVENTS_A_CHECKPOINT = 1000
EVENTS_A_ROUND = 8
"""Of a site: task received, peer's checkpoint, data set opened, ledger charged, result sent, own checkpoint, and room
for two more. The server has three for each site and four of its own, beside its longer round."""
PAYLOAD = Payload(tensors=122, bytes=44_700_000, sha256="ab" * 32, dtypes=["float32"])


class Clock:
    """Wall and CPU seconds since it began."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def seconds(self) -> tuple[float, float]:
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


def make_party() -> tuple[Signer, str]:
    """A site's signer with an RSA key of 2048 bits, as central provisioning makes them; and the root, PEM."""
    now = datetime.now(timezone.utc)
    keys = {name: rsa.generate_private_key(public_exponent=65537, key_size=2048) for name in ("project", SITE)}

    def issue(name: str) -> str:
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "project")]))
            .public_key(keys[name].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=360))
            .add_extension(x509.BasicConstraints(ca=name != SITE, path_length=None), critical=True)
        )
        return builder.sign(keys["project"], SHA256()).public_bytes(Encoding.PEM).decode("ascii")

    return Signer(keys[SITE], issue(SITE)), issue("project")


def write_event(log: AuditLog, number: int, durable: bool) -> None:
    """One event as a task leaves it."""
    log.write(
        Kind.TASK_RECEIVED,
        durable=durable,
        peer="server",
        job_id="0c9e6a5e",
        round=number,
        payload=PAYLOAD,
        lambda_t=0.85,
    )


def measure_writing(folder: Path, events: int, durable: bool) -> dict[str, Any]:
    """Events a second of one writer."""
    log = AuditLog(folder / f"durable-{durable}", SITE)
    write_event(log, 0, durable)
    clock = Clock()
    for number in range(events):
        write_event(log, number, durable)
    wall, cpu = clock.seconds()
    return {"events": events, "events_per_second": events / wall, "events_per_cpu_second": events / cpu}


def measure_verification(folder: Path, events: int) -> dict[str, Any]:
    """Seconds to verify a log of that many events, checkpoints included."""
    signer, root = make_party()
    (folder / "rootCA.pem").write_text(root)
    log = AuditLog(folder / "long", SITE)
    for number in range(1, events + 1):
        if number % EVENTS_A_CHECKPOINT and number < events:
            write_event(log, number, durable=False)
        else:
            write_checkpoint(log, signer)
    clock = Clock()
    result = verify([log.folder], folder / "rootCA.pem")
    wall, cpu = clock.seconds()
    assert result.verified
    assert result.events >= events
    return {"events": result.events, "checkpoints": result.checkpoints, "seconds": wall, "cpu_seconds": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=50_000, help="events of the writer without fsync")
    parser.add_argument("--durable-events", type=int, default=500, help="events of the writer with fsync")
    parser.add_argument("--verify", type=int, default=1_000_000, help="events of the log that is verified")
    parser.add_argument("--round-seconds", type=float, help="seconds of a measured round, for the log's share of it")
    parser.add_argument("--folder", type=Path, help="where to write, as fsync depends on the disk; default: temporary")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {
        "device": platform.processor() or platform.machine(),
        "python": platform.python_version(),
    }
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        for durable, events in ((False, arguments.events), (True, arguments.durable_events)):
            row = figures["durable" if durable else "buffered"] = measure_writing(folder, events, durable)
            print(
                f"write {'with' if durable else 'without'} fsync: {row['events_per_second']:>9.0f} events/s, "
                f"{row['events_per_cpu_second']:>9.0f} a CPU second",
                flush=True,
            )
        row = figures["verification"] = measure_verification(folder, arguments.verify)
        print(f"verify {row['events']} events: {row['seconds']:.1f} s, {row['cpu_seconds']:.1f} s of CPU")
    if arguments.round_seconds:
        seconds = EVENTS_A_ROUND / figures["durable"]["events_per_second"]
        figures["round"] = {
            "events": EVENTS_A_ROUND,
            "audit_seconds": seconds,
            "round_seconds": arguments.round_seconds,
            "share": seconds / arguments.round_seconds,
        }
        print(
            f"a round's {EVENTS_A_ROUND} events: {seconds:.3f} s, {seconds / arguments.round_seconds:.3%} of the round"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    else:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
