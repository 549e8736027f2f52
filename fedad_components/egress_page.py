"""The security officer's page: what a job would let out of a site, before it runs, and whether the site would run it.

Read from the job's folder, the site's policy and its catalogue; nothing of the job is executed. Needs no FLARE.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedad_components.algorithms import algorithm_of
from fedad_components.config import SILENT_MODES, ExperimentConfig
from fedad_components.flare.site import SitePolicy
from fedad_components.job_reader import Refusal, read_job
from fedad_components.privacy.accountant import Charge, epsilon_record, epsilon_unit
from fedad_components.privacy.claim import PrivacyClaim, statement
from fedad_components.privacy.plan import PlanError, sample_rate, steps_per_round
from fedad_components.privacy.policy import PolicyRefused, Rule
from fedad_components.wire import Reason

if TYPE_CHECKING:
    from fedad_components.imaging.catalogue import DataSet

MEANINGS = {
    "config_digest": "SHA-256 of the job's configuration: server and site run the same one",
    "round": "number of the round",
    "n_samples": "images or bags that the site trained on: the weight of its update",
    "losses": "a few numbers, means over the last local epoch and all images or bags",
    "events": "of survival, in round 0: how many training patients had theirs in each cell of time; none of fewer "
    "than counts.min_cell",
    "validation": "how the round's model does on the validation patients, in every round: tables of counts, of which "
    "confusion and pairs are exact and may be small",
    "claim": "the site's privacy guarantee so far, from public figures alone",
    "ledger_head": "hash over the site's privacy ledger, so that a ledger that was rolled back is noticed",
    "checkpoint": "the site's signed statement of the end of its compliance log: its name, number of events, a hash, "
    "the time, its certificate",
    "counts_nonce": "random, beside counts: keys their digests in the compliance logs, so that nobody finds them by "
    "trying",
}
"""What each field of a result's meta says; tests hold it against ``wire.SentMeta``."""


@dataclass(frozen=True)
class Way:
    """A way in which bytes can leave a site's processes."""

    name: str
    flare: str
    fedad: str


PATHS = (
    Way(
        "task results",
        "site filters, then the job's own filters, then the wire",
        "StrictEgress rebuilds them from an exact list; the guard then passes only what StrictEgress let out last",
    ),
    Way(
        "results with an error code",
        "filtered as any other result (FLARE 2.9)",
        "only the code, a reason and a rule from fixed vocabularies",
    ),
    Way(
        "auxiliary messages",
        "no filter",
        "refused, but for FLARE's three: runner sync, job heartbeat, task check; these without content",
    ),
    Way(
        "federated events",
        "auxiliary topic `fed.event`, no filter; a job process always has the sender",
        "refused",
    ),
    Way(
        "metrics (`log_stats`, `add_scalar`)",
        "become federated events by ConvertToFedEvent, or auxiliary messages",
        "refused; the classes are in no allow list",
    ),
    Way(
        "log and error streams",
        "object streams, no filter; FLARE allows them unless a site forbids it",
        "refused; `allow_log_streaming: false`; the streamers are taken out of the kit",
    ),
    Way(
        "object, file and byte streams",
        "any channel and topic, no filter",
        "refused; every stream needs a listed channel and topic",
    ),
    Way(
        "download service, by which large tensors travel",
        "whoever knows a reference may fetch it, no filter",
        "bounded: no more bytes than two updates for each result that StrictEgress let out",
    ),
    Way(
        "public properties of FLARE's context",
        "travel with every message of a job",
        "refused, but for the names of site and job",
    ),
    Way(
        "`show_errors`, `show_stats` and other replies of a job",
        "every error that is logged as an event can be asked for from the console",
        "reply without content; FedAD's errors are no events",
    ),
    Way(
        "shell, environment, system and component commands",
        "the site's authorization decides",
        "denied to every role; the reply would go out empty all the same",
    ),
    Way(
        "network diagnosis (`cells`, `config_vars`, `process_info`)",
        "each process answers, no authorization at the site",
        "reply without content",
    ),
    Way(
        "registration, heartbeats, job status",
        "the site's name, certificate, address, versions, job ids, exit code",
        "let through: FLARE does not run without them",
    ),
)
"""docs/security.md has the same table; a test holds the two together."""

STAYS = (
    "the optimiser's state",
    "catalogue, policy, privacy ledger and key of the privacy units",
    "logs, and the cause of an error",
)


@dataclass(frozen=True)
class Tensor:
    """One tensor that leaves with each result."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True)
class EgressPage:
    """The page; ``tensors`` and everything after it is empty where the job has no usable configuration."""

    job: str
    refusals: tuple[Refusal, ...]
    config: ExperimentConfig | None
    deployed: Mapping[str, tuple[str, ...]]
    tensors: tuple[Tensor, ...] = ()
    meta: Mapping[str, str] | None = None
    counts: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()
    claim: PrivacyClaim | None = None
    notes: tuple[str, ...] = ()

    @property
    def bytes_per_round(self) -> int:
        """Bytes of all tensors of one result."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def statement(self) -> str:
        """What may be said about the job's privacy."""
        if self.config is None:
            return ""
        return statement(self.config)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, every tensor listed."""
        config = self.config
        return {
            "job": self.job,
            "deployed": {app: list(sites) for app, sites in self.deployed.items()},
            "would_run": not self.refusals,
            "refusals": [vars(refusal) for refusal in self.refusals],
            "experiment": config and config.federation.experiment,
            "data_set": config and config.federation.data_set,
            "rounds": config and config.federation.rounds,
            "config_digest": config and config.digest(),
            "privacy": config
            and {
                "mode": config.privacy.mode,
                "statement": self.statement,
                "planned": self.claim and self.claim.model_dump(mode="json"),
                "planned_text": self.claim and str(self.claim),
            },
            "leaves": {
                "tensors": [vars(tensor) for tensor in self.tensors],
                "bytes_per_round": self.bytes_per_round,
                "bytes_total": self.bytes_per_round * (config.federation.rounds if config else 0),
                "meta": dict(self.meta or {}),
                "counts": list(self.counts),
                "error_reasons": [reason.value for reason in Reason],
                "error_rules": [rule.value for rule in Rule],
            },
            "stays": list(self.stays),
            "paths": [vars(path) for path in PATHS],
            "notes": list(self.notes),
        }


def make_page(
    job: str | Path,
    allow_list: Collection[str],
    *,
    executor: str,
    scope: str,
    policy: SitePolicy | None = None,
    data_sets: Mapping[str, DataSet] | None = None,
) -> EgressPage:
    """Say what a job would let out; ``job`` to ``scope``, and what is raised, are :func:`read_job`'s.

    Args:
        policy: the site's; by default that of a site without ``policy.yaml``.
        data_sets: of the site's catalogue; without one, nothing is said about data.
    """
    read = read_job(job, allow_list, executor=executor, scope=scope)
    name, config = Path(job).name, read.config
    if config is None:
        return EgressPage(name, read.refusals, None, read.deployed)
    policy = policy or SitePolicy()
    refusals = [*read.refusals, *_policy(config, policy)]
    refusals += [] if data_sets is None else _data(config, data_sets)
    units = data_sets[config.federation.data_set].units if data_sets and not refusals else None
    claim, notes = _plan(config, units, policy)
    return EgressPage(
        name,
        tuple(refusals),
        config,
        read.deployed,
        tensors=_tensors(config),
        meta=_meta(config),
        counts=tuple(algorithm_of(config).counts(config)),
        stays=tuple(_stays(config)),
        claim=claim,
        notes=tuple(notes),
    )


# -- the site ---------------------------------------------------------------------------------------------------------


def _policy(config: ExperimentConfig, policy: SitePolicy) -> list[Refusal]:
    try:
        policy.check(config)
    except PolicyRefused as error:
        return [Refusal(error.rule.value, str(error).removeprefix(f"{error.rule.value}: "))]
    return []


def _data(config: ExperimentConfig, data_sets: Mapping[str, DataSet]) -> list[Refusal]:
    wanted = config.federation.data_set
    if wanted not in data_sets:
        return [Refusal("catalogue", f"no data set {wanted!r} (there are: {', '.join(sorted(data_sets)) or 'none'})")]
    units, privacy = data_sets[wanted].units, config.privacy
    public = config.public_data_set
    if public is not None and public not in data_sets:
        return [Refusal("catalogue", f"no data set {public!r}, which the job takes for public images")]
    if privacy.mode != "dp_sgd":
        return []
    if units is None:
        return [Refusal("catalogue", f"data set {wanted!r} declares no `units`, which privacy.mode 'dp_sgd' needs")]
    try:
        sample_rate(units, privacy.units_per_step)
    except PlanError as error:
        return [Refusal("catalogue", str(error))]
    return []


# -- what leaves ------------------------------------------------------------------------------------------------------


def _tensors(config: ExperimentConfig) -> tuple[Tensor, ...]:
    from fedad_components.algorithms import wire_spec
    from fedad_components.tensors import wire_dtype

    width = wire_dtype(config).itemsize
    return tuple(
        Tensor(name, shape, config.federation.wire_dtype, width * math.prod(shape))
        for name, shape in wire_spec(config).items()
    )


def by_group(tensors: Collection[Tensor]) -> dict[str, list[Tensor]]:
    """Tensors by layer: ``conv1``, ``bn1``, ``layer1`` to ``layer4``, ``head``."""
    groups: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.name.partition(".")[0], []).append(tensor)
    return groups


def _meta(config: ExperimentConfig) -> dict[str, str]:
    told = config.reports(0) | config.reports(1) | ({"claim"} if config.privacy.mode == "dp_sgd" else set())
    told |= {"counts_nonce"} if told & {"events", "validation"} else set()
    absent = {"n_samples", "losses", "events", "validation", "claim", "counts_nonce"} - told
    return {name: meaning for name, meaning in MEANINGS.items() if name not in absent}


def _stays(config: ExperimentConfig) -> Iterator[str]:
    yield from algorithm_of(config).stays(config)
    yield from STAYS
    if config.privacy.mode in SILENT_MODES:
        yield f"the number of {config.trains_on}, and every loss"


def _plan(config: ExperimentConfig, units: int | None, policy: SitePolicy) -> tuple[PrivacyClaim | None, list[str]]:
    """The guarantee after all rounds, as an empty ledger would give it."""
    privacy, rounds = config.privacy, config.federation.rounds
    if privacy.mode != "dp_sgd":
        return None, []
    if units is None:
        return None, ["the planned epsilon depends on the data set's `units`, in the catalogue of a site's --kit"]
    try:
        charge = Charge(
            privacy.noise_multiplier,
            sample_rate(units, privacy.units_per_step),
            rounds * steps_per_round(config.training.epochs, units, privacy.units_per_step),
        )
        claim = PrivacyClaim(
            unit=privacy.unit,
            units=units,
            noise_multiplier=charge.noise_multiplier,
            sample_rate=charge.sample_rate,
            steps=charge.steps,
            delta=privacy.delta,
            epsilon_unit=epsilon_unit([charge], privacy.delta),
            epsilon_record=epsilon_record([charge], privacy.delta),
        )
    except (ArithmeticError, RuntimeError, ValueError) as error:  # absurd figures end in any of these
        return None, [f"no epsilon can be planned: {error}"]
    notes = ["the plan counts this job alone: the site's ledger adds what the data set has spent before"]
    rules = policy.rules(config.federation.data_set)
    for rule, budget, planned in (
        (Rule.MAX_EPSILON, rules.max_epsilon, claim.epsilon_unit),
        (Rule.MAX_EPSILON_RECORD, rules.max_epsilon_record, claim.epsilon_record),
    ):
        if budget is not None and planned is not None and planned > budget:
            notes.append(
                f"{rule.value}: the data set's budget {budget:g} would be passed before round {rounds}: this site "
                f"would then refuse (planned: {claim})"
            )
    return claim, notes
