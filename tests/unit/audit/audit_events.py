"""One event of each kind, as the parties write them; and the text that nobody wants in a log."""

from __future__ import annotations

from typing import Any

from fedad_components.audit.event import FIRST_PREV, Event, Kind, line_hash

NASTY = 'J\u00f6rg "O\'Neil" & <b>]]></b>\\]\n[E:forged]\r\t\x00\x1b[31mred\u202egnp\u2028\ufffe'
"""Quotes of every format, ends of elements, control characters, a change of direction, a non-character."""

DIGEST = "ab" * 32
PAYLOAD = {"tensors": 122, "bytes": 44_700_000, "sha256": DIGEST, "dtypes": ["F32", "I64"]}
POLICY = {"filters": ["StrictEgress"], "digest": DIGEST}
ACTOR = {"name": "lead@hospital-a.example", "org": "Hospital A", "role": "lead"}
JOB = {"job_id": "0c9e6a5e-1111", "job_name": "fedad_job"}
ROUND = {**JOB, "experiment": "fedad", "round": 3, "task_id": "t-3"}
CHECKPOINT = {
    "site": "server",
    "seq": 7,
    "root": DIGEST,
    "time": "2030-01-31T08:00:00.000000Z",
    "certificate": "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n",
    "signature": "AAAA",
}
_FIELDS: dict[Kind, dict[str, Any]] = {
    Kind.SYSTEM_STARTED: {
        "software": {"fedad": "1.0", "digest": DIGEST},
        "files": {"startup/fed_client.json": DIGEST},
        "certificate": CHECKPOINT["certificate"],
        "policy": POLICY,
    },
    Kind.SIGNED_IN: {"actor": ACTOR},
    Kind.CONNECTION_REFUSED: {"peer": "hospital-x", "outcome": "refused", "reason": "its certificate has expired"},
    Kind.COMMAND: {"actor": ACTOR, "command": "abort_job", "outcome": "refused", "reason": "not its submitter"},
    Kind.JOB_SUBMITTED: {"actor": ACTOR, **JOB, "job_digest": DIGEST, "files": {"app/config/x.json": DIGEST}},
    Kind.JOB_APPROVAL: {"actor": ACTOR, **JOB, "job_digest": DIGEST},
    Kind.JOB_ENDED: {**JOB, "outcome": "failed", "reason": "fewer sites answered than the quorum"},
    Kind.DATA_SET_OPENED: {**JOB, "data_set": "chest-xray", "images": 5216},
    Kind.TASK_SENT: {**ROUND, "peer": "hospital-a", "payload": PAYLOAD, "lambda_t": 0.5},
    Kind.TASK_RECEIVED: {**ROUND, "peer": "server", "payload": PAYLOAD, "lambda_t": 0.5},
    Kind.RESULT_SENT: {
        **ROUND,
        "peer": "server",
        "payload": PAYLOAD,
        "policy": POLICY,
        "privacy": {"mode": "dp_sgd", "data_set": "chest-xray", "epsilon_before": 1.0, "epsilon_after": 1.5},
    },
    Kind.UPDATE_RECEIVED: {**ROUND, "peer": "hospital-a", "payload": PAYLOAD, "counts": {"events": DIGEST}},
    Kind.AGGREGATED: {
        **ROUND,
        "participants": {"hospital-a": 10, "hospital-b": 20},
        "payload": PAYLOAD,
        "instability": -0.25,
    },
    Kind.LEDGER_CHARGED: {
        **ROUND,
        "data_set": "chest-xray",
        "privacy": {"mode": "dp_sgd", "unit": "patient", "epsilon_after": 1.5, "budget": 8.0, "delta": 1e-5},
    },
    Kind.POLICY_CHANGED: {"policy": POLICY},
    Kind.CERTIFICATE_CHANGED: {"certificate": CHECKPOINT["certificate"]},
    Kind.LOG_READ: {"actor": ACTOR},
    Kind.CHECKPOINT: {"checkpoint": CHECKPOINT},
    Kind.PEER_CHECKPOINT: {"peer": "server", "checkpoint": CHECKPOINT},
}


def event_of(kind: Kind, seq: int = 0, prev: str = FIRST_PREV, **changes: Any) -> Event:
    """An event with the fields of its kind, a second after its predecessor."""
    base = {
        "seq": seq,
        "prev": prev,
        "time": f"2030-01-31T08:{seq // 60:02}:{seq % 60:02}.000001Z",
        "site": "hospital-a",
        "event": kind.value,
        "outcome": "success",
    }
    return Event.model_validate({**base, **_FIELDS.get(kind, {}), **changes}, strict=False)


def every_kind() -> list[Event]:
    """A chain with one event of each kind."""
    chain: list[Event] = []
    for seq, kind in enumerate(Kind):
        chain.append(event_of(kind, seq, line_hash(chain[-1].line()) if chain else FIRST_PREV))
    return chain


def nasty_event() -> Event:
    """An event with :data:`NASTY` wherever text may stand."""
    return event_of(
        Kind.RESULT_SENT,
        site=NASTY,
        actor={"name": NASTY, "org": NASTY, "role": NASTY},
        job_id=NASTY,
        job_name=NASTY,
        files={NASTY: DIGEST},
        experiment=NASTY,
        participants={NASTY: 1},
        data_set=NASTY,
        peer=NASTY,
        reason=NASTY,
        payload={**PAYLOAD, "dtypes": [NASTY]},
        policy={"filters": [NASTY]},
    )
