"""A federation in which all that a report has to tell of has happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from audit_events import NASTY
from parties import DAY, Federation, now

from fedad_components.audit.event import Kind, Outcome

DIGEST = "ab" * 32
LEAD = {"name": "lead@example.org", "org": "Hospital A", "role": "lead"}
JOB = {"job_id": "job-1", "job_name": "fedad_job", "experiment": "chest"}
FILES = {"meta.json": "cd" * 32}


def privacy(before: float, after: float | None, **changes: Any) -> dict[str, Any]:
    cost = {"mode": "dp_sgd", "unit": "patient", "data_set": "chest", "budget": 8.0, "delta": 1e-5}
    return {**cost, "epsilon_before": before, "epsilon_after": after, **changes}


def eventful(folder: Path, rounds: int = 2) -> Federation:
    """Two rounds of one job; refusals, approvals, charges, changes, a certificate that ends in 20 days."""
    federation = Federation(folder, kinds=("ec", "ec", "ec"))
    write = federation.write
    write("server", Kind.SIGNED_IN, actor=LEAD)
    write("server", Kind.JOB_SUBMITTED, actor=LEAD, job_digest=DIGEST, files=FILES, **JOB)
    member = {"name": "member@example.org", "role": "member"}
    write("server", Kind.COMMAND, Outcome.REFUSED, actor=member, command="abort_job", reason="not her right")
    for _ in range(3):
        write("server", Kind.CONNECTION_REFUSED, Outcome.REFUSED, peer=NASTY, reason="its certificate has expired")
    write("site-a", Kind.JOB_APPROVAL, actor={"name": "reviewer"}, job_digest=DIGEST, reason="approved", **JOB)
    write("site-a", Kind.DATA_SET_OPENED, data_set="chest", images=5216, **JOB)
    for number in range(rounds):
        federation.round(number)
        for site in federation.SITES:
            cost = privacy(number * 0.5, number * 0.5 + 0.5)
            write(site, Kind.LEDGER_CHARGED, data_set="chest", privacy=cost, round=number, **JOB)
    write("site-b", Kind.LEDGER_CHARGED, Outcome.REFUSED, data_set="chest", reason="budget_exhausted", **JOB)
    write("site-a", Kind.POLICY_CHANGED, policy={"digest": DIGEST})
    signer = federation.signers["site-b"] = federation.authority.leaf("site-b", "ec", ends=now() + 20 * DAY)
    write("site-b", Kind.CERTIFICATE_CHANGED, certificate=signer.certificate)
    write("site-b", Kind.LOG_READ, actor={"name": "auditor"}, command="audit query")
    write("server", Kind.JOB_ENDED, reason="FINISHED:COMPLETED", **JOB)
    federation.close()
    return federation
