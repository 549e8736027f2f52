"""One event of the compliance log: its fields, its vocabulary, its one line of canonical JSON (RFC 8785).

Nothing in an event is free text from outside. Names come from certificates, data sets go by id and count, and a reason
is a word of ours with a message of ours: never the text of somebody's exception, a file's name or a patient's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable
from datetime import datetime, timezone
from enum import Enum
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Annotated, Any, Literal, NamedTuple

import rfc8785
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

SCHEMA_VERSION: Literal[1] = 1
FIRST_PREV = "0" * 64
"""``prev`` of a chain's first event."""
LONGEST_NAME = 256
LONGEST_REASON = 1000

PLAIN_WORD = re.compile(r"[A-Za-z0-9_.:@\-]{1,128}")
"""A name from outside that may stand in an event as it is: nothing that could be a sentence."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
"""As far as JSON counts exactly (RFC 8785)."""


def moment(time: str) -> datetime:
    """The moment that a :data:`Time` names; ValueError if the calendar or the clock has none such."""
    return datetime.fromisoformat(f"{time[:-1]}+00:00")


def _exists(time: str) -> str:
    moment(time)
    return time


Time = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$"), AfterValidator(_exists)]


class Kind(str, Enum):
    """What happened."""

    SYSTEM_STARTED = "system_started"
    SYSTEM_STOPPED = "system_stopped"
    JOB_PROCESS_STARTED = "job_process_started"
    JOB_PROCESS_STOPPED = "job_process_stopped"
    SIGNED_IN = "signed_in"
    CONNECTION_REFUSED = "connection_refused"
    COMMAND = "command"
    JOB_SUBMITTED = "job_submitted"
    JOB_APPROVAL = "job_approval"
    JOB_DEPLOYED = "job_deployed"
    JOB_ENDED = "job_ended"
    DATA_SET_OPENED = "data_set_opened"
    TASK_SENT = "task_sent"
    TASK_RECEIVED = "task_received"
    RESULT_SENT = "result_sent"
    UPDATE_RECEIVED = "update_received"
    AGGREGATED = "aggregated"
    MODEL_SAVED = "model_saved"
    MODEL_RESUMED = "model_resumed"
    LEDGER_CHARGED = "ledger_charged"
    POLICY_CHANGED = "policy_changed"
    CERTIFICATE_CHANGED = "certificate_changed"
    CLOCK_STEPPED_BACK = "clock_stepped_back"
    LOG_ROTATED = "log_rotated"
    LOG_TORN = "log_torn"
    LOG_READ = "log_read"
    LOG_EXPORTED = "log_exported"
    LOG_CUT = "log_cut"
    CHECKPOINT = "checkpoint"
    PEER_CHECKPOINT = "peer_checkpoint"


class Outcome(str, Enum):
    """How it ended; refused: by a rule, failed: by an error."""

    SUCCESS = "success"
    REFUSED = "refused"
    FAILED = "failed"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Actor(_Part):
    """Who did it, as their certificate says."""

    name: Name
    org: Name | None = None
    role: Name | None = None


class Payload(_Part):
    """Tensors that travelled."""

    tensors: Count
    bytes: Count
    sha256: Digest
    """Over names, types, shapes and values, the same at sender and receiver."""
    dtypes: Annotated[list[Name], Field(max_length=16)]


class Policy(_Part):
    """What stood between the data and the wire."""

    filters: Annotated[list[Name], Field(max_length=64)] = []
    digest: Digest | None = None
    """SHA-256 of the site's policy file."""


class Privacy(_Part):
    """What a round cost of a data set's budget; epsilon of the unit, at delta."""

    mode: Literal["none", "dp_sgd", "weight_noise", "client_dp"]
    unit: Literal["patient", "bundle", "hospital"] | None = None
    data_set: Name | None = None
    epsilon_before: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    epsilon_after: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    budget: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None


class SignedCheckpoint(_Part):
    """What a party says its log was at a moment: its first ``seq`` + 1 events end in ``root``.

    Signed over the canonical JSON of all other fields by the key of ``certificate``: RSA-PSS or ECDSA with SHA-256, or
    Ed25519, as the key is.
    """

    site: Name
    seq: Count
    root: Digest
    """SHA-256 of the line of event ``seq``."""
    time: Time
    certificate: str
    """The party's certificate, PEM: public, and needed to check the signature away from the system."""
    signature: str
    """Base64."""


class Event(_Part):
    """One line. Fields that do not apply are absent."""

    v: Literal[1] = SCHEMA_VERSION
    seq: Count
    time: Time
    """UTC, RFC 3339, microseconds."""
    site: Name
    """Whose log it is: the name in the party's certificate."""
    event: Kind
    outcome: Outcome
    prev: Digest
    """SHA-256 of the line before, without its newline; 64 zeros for the first."""
    actor: Actor | None = None
    peer: Name | None = None
    """The other party of a connection, task or result."""
    job_id: Name | None = None
    job_name: Name | None = None
    job_digest: Digest | None = None
    files: Annotated[dict[Name, Digest], Field(max_length=1000)] | None = None
    """A job's files, or a kit's, by their path in it: SHA-256 of each."""
    command: Name | None = None
    """A console command without its arguments."""
    experiment: Name | None = None
    round: Count | None = None
    task_id: Name | None = None
    participants: dict[Name, Count] | None = None
    """Sites of an aggregate with their weight n_k."""
    data_set: Name | None = None
    images: Count | None = None
    payload: Payload | None = None
    counts: Annotated[dict[Name, Digest], Field(max_length=16)] | None = None
    """Counts of patients that travelled beside the tensors, by name: SHA-256 of their canonical JSON."""
    policy: Policy | None = None
    privacy: Privacy | None = None
    lambda_t: Annotated[float, Field(allow_inf_nan=False)] | None = None
    instability: Annotated[float, Field(allow_inf_nan=False)] | None = None
    software: dict[Name, Name] | None = None
    """Package to version, and ``digest`` to the SHA-256 of FedAD's own files."""
    certificate: str | None = None
    """At start and change: the party's certificate, PEM."""
    checkpoint: SignedCheckpoint | None = None
    reason: Annotated[str, Field(max_length=LONGEST_REASON)] | None = None

    def line(self) -> bytes:
        """The event's line without its newline: canonical JSON (RFC 8785), absent fields left out."""
        return canonical(self.model_dump(mode="json", exclude_none=True))


class EventError(ValueError):
    """A line that is no event; the message says why."""


class Parsed(NamedTuple):
    """An event that was read, with the hash that its successor has to name."""

    event: Event
    hash: str


def canonical(value: dict[str, Any]) -> bytes:
    """RFC 8785: one byte string for one JSON value. No newline or control character is in it unescaped.

    Equal to ``rfc8785.dumps``, which still writes the numbers, and three times as fast: millions of lines are verified.

    Raises:
        ValueError: for what RFC 8785 excludes, as NaN, numbers above 2^53 or half a surrogate pair.
    """
    return _json(value).encode()


def _json(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return encode_basestring(value)  # escapes what RFC 8785 3.2.2.2 wants escaped, in the same way
    if kind is dict:
        return "{" + ",".join([f"{encode_basestring(key)}:{_json(value[key])}" for key in _sorted(value)]) + "}"
    if kind is list:
        return "[" + ",".join([_json(item) for item in value]) + "]"
    return _atom(value)


def _sorted(value: dict[str, Any]) -> list[str]:
    """The keys by their UTF-16 code units, RFC 8785 3.2.3: an order of its own only outside ASCII."""
    if "".join(value).isascii():
        return sorted(value)
    return sorted(value, key=lambda key: key.encode("utf-16-be"))


@lru_cache(maxsize=65536, typed=True)
def _atom(value: Hashable) -> str:
    """A number, true, false or null."""
    return rfc8785.dumps(value).decode()  # type: ignore[arg-type]  # it refuses what it cannot write


def line_hash(line: bytes) -> str:
    """SHA-256 of a line without its newline, in hex."""
    return hashlib.sha256(line).hexdigest()


def now() -> str:
    """UTC, RFC 3339 with microseconds."""
    return rfc3339(datetime.now(timezone.utc))


def rfc3339(moment: datetime) -> str:
    """As a :data:`Time`; the moment is aware of its zone."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse(line: bytes) -> Parsed:
    """Read a line, without its newline; it has to be the canonical form of an event, byte for byte.

    Raises:
        EventError: otherwise.
    """
    try:
        event = Event.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "line"
        raise EventError(f"{place!r}: {first['msg']}") from None  # a forged field's name may hold anything
    if event.line() != line:
        raise EventError("not in canonical form (RFC 8785)")
    return Parsed(event, line_hash(line))


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a line."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"https://fedad.invalid/schema/audit-event-{SCHEMA_VERSION}.json",
        **Event.model_json_schema(mode="serialization"),
    }
