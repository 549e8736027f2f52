"""FedAD's controller: FLARE's ScatterAndGather with sampled sites, lambda_t in each task and a quorum."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import Task
from nvflare.apis.dxo import from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.widgets.info_collector import GroupInfoCollector, InfoCollector

from fedad_components.algorithms import algorithm_of, parse_config, trainable_names
from fedad_components.atsa import ATSA, instability
from fedad_components.audit.event import Kind, Outcome, Privacy, SignedCheckpoint
from fedad_components.audit.log import AuditError
from fedad_components.flare.aggregator import FedADAggregator, RoundOfUpdates
from fedad_components.flare.audit import audit, payload
from fedad_components.flare.context import SENDER_PROP, known_code, register_tensors, set_configuration
from fedad_components.flare.persistor import ATSA_STATE, BEST, LEDGER_HEADS, MONITOR_STATE, NEXT_ROUND, RECORD
from fedad_components.participation import draw_sites
from fedad_components.privacy.accountant import Charge, epsilon_unit
from fedad_components.privacy.claim import PrivacyClaim
from fedad_components.privacy.client_dp import ClientDPRefused, check_size
from fedad_components.records import RoundRecord
from fedad_components.tensors import encode
from fedad_components.wire import REASON_HEADER, RULE_HEADER, ResultMeta, TaskMeta, parse_reason, parse_rule, site_key

if TYPE_CHECKING:
    import torch

TRAIN_TASK = "train"
STATS_GROUP = "fedad"
"""Group under which ``show_stats server`` reports an experiment's progress."""


def _reported(name: str, accepted: Mapping[str, ResultMeta]) -> dict[str, Any]:
    """What the accepted sites say under one key of their meta; sites that keep it back are left out."""
    values = ((site, getattr(meta, name)) for site, meta in sorted(accepted.items()))
    return {site: value for site, value in values if value is not None}


class FedADController(ScatterAndGather):
    """Rounds of FedAD: draw sites, send theta and lambda_t, gather, aggregate, adapt lambda_t, save.

    The job ends, with a message that names each site and reason, when fewer than ``federation.min_sites`` good updates
    came in a round; nothing waits longer than ``federation.round_timeout``.
    """

    def __init__(
        self,
        config: dict[str, Any],
        persistor_id: str = AppConstants.DEFAULT_PERSISTOR_ID,
        aggregator_id: str = AppConstants.DEFAULT_AGGREGATOR_ID,
        shareable_generator_id: str = AppConstants.DEFAULT_SHAREABLE_GENERATOR_ID,
        task_check_period: float = 0.2,
    ) -> None:
        """``config`` is the experiment's configuration as JSON; the ids name this job's other components."""
        register_tensors()
        self.config = config
        self._config = parse_config(config)
        federation = self._config.federation
        super().__init__(
            min_clients=federation.min_sites,
            num_rounds=federation.rounds,
            wait_time_after_min_received=federation.wait_after_quorum,
            train_timeout=federation.round_timeout,
            persistor_id=persistor_id,
            aggregator_id=aggregator_id,
            shareable_generator_id=shareable_generator_id,
            train_task_name=TRAIN_TASK,
            task_check_period=task_check_period,
            ignore_result_error=True,  # a site's failure is counted against the quorum, not against the job
            snapshot_every_n_rounds=0,  # FLARE's snapshots do not resume; our checkpoint does
        )
        self._digest = self._config.digest()
        self._trainable = trainable_names(self._config)
        self._atsa = ATSA(self._config.schedule)
        self._monitor = algorithm_of(self._config).make_monitor(self._config)
        self._best: dict[str, torch.Tensor] = {}
        self._records: list[RoundRecord] = []
        self._ledger_heads: dict[str, str] = {}
        self._theta_old: dict[str, Any] = {}
        self._round_started = 0.0
        self._task: Task | None = None

    # -- start and resume ---------------------------------------------------------------------------------------------

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Load the experiment's checkpoint, or its initial weights, and go on from there."""
        set_configuration(fl_ctx, self._config)
        try:
            audit(fl_ctx).write(Kind.JOB_PROCESS_STARTED)
            super().start_controller(fl_ctx)
        except Exception as error:
            self.system_panic(f"experiment {self._config.federation.experiment!r} cannot start: {error}", fl_ctx)
            return
        if not isinstance(self.aggregator, FedADAggregator):
            self.system_panic(f"aggregator {self.aggregator_id!r} must be a FedADAggregator", fl_ctx)
            return
        meta = self._global_weights[ModelLearnableKey.META]
        if meta[ATSA_STATE] is not None:
            self._atsa.load_state_dict(meta[ATSA_STATE])
        if meta[MONITOR_STATE]:
            self._monitor.load_state_dict(meta[MONITOR_STATE])
        self._best = meta[BEST]
        self._ledger_heads = dict(meta[LEDGER_HEADS])
        self._start_round = meta[NEXT_ROUND]
        self._num_rounds = max(0, self._config.federation.rounds - self._start_round)
        fl_ctx.set_prop(AppConstants.START_ROUND, self._start_round, private=True, sticky=True)
        if self._monitor.stopped:
            self._num_rounds = 0
            self.log_info(
                fl_ctx,
                f"experiment {self._config.federation.experiment!r} has stopped early: its result is the best round's; "
                f"choose another experiment name to train on",
            )
        elif self._num_rounds == 0:
            self.log_info(
                fl_ctx,
                f"all {self._config.federation.rounds} rounds of experiment {self._config.federation.experiment!r} are "
                f"done: raise federation.rounds to go on, or choose another experiment name",
            )

    # -- one round ----------------------------------------------------------------------------------------------------

    def broadcast_and_wait(
        self,
        task: Task,
        fl_ctx: FLContext,
        targets: list[Client] | list[str] | None = None,
        min_responses: int = 1,
        wait_time_after_min_received: int = 0,
        abort_signal: Signal | None = None,
    ) -> None:
        """Send the round to the drawn sites; gather until all answered or the time is over.

        FLARE's ``min_responses`` counts failures as answers, so it is not used: the wait starts with the quorum's last
        *good* update (see :meth:`_process_train_result`).
        """
        round_number = self._current_round
        present = [
            client.name for client in self._engine.get_clients() if not self.get_client_disconnect_time(client.name)
        ]
        count = 0 if self._config.surveys(round_number) else self._config.federation.sites_per_round
        sites = draw_sites(present, count, self._config.seed, round_number)
        if len(sites) < self._min_clients:
            self.system_panic(
                f"round {round_number}: {len(sites)} site(s) present ({', '.join(sites) or 'none'}), the quorum "
                f"federation.min_sites is {self._min_clients}: start more sites and resubmit the job",
                fl_ctx,
            )
            return
        if self._config.privacy.mode == "client_dp":
            try:
                check_size(len(sites), self._config)
            except ClientDPRefused as error:
                self.system_panic(f"round {round_number}: {error}", fl_ctx)
                return
        dxo = from_shareable(task.data)
        try:
            checkpoint = self._write_task(dxo.data, sites, fl_ctx)
        except AuditError as error:
            self.system_panic(f"round {round_number}: {error}", fl_ctx)
            return
        experiment = self._config.federation.experiment
        dxo.meta = TaskMeta(
            experiment=experiment,
            config_digest=self._digest,
            round=round_number,
            lambda_t=self._atsa.lambda_t,
            ledger_heads={site_key(experiment, site): head for site, head in self._ledger_heads.items()},
            bin_edges=self._monitor.bin_edges,
            checkpoint=checkpoint,
        ).model_dump()
        dxo.update_shareable(task.data)
        self._theta_old = self._global_weights[ModelLearnableKey.WEIGHTS]
        self.aggregator.open_round(round_number, sites, self._config, self._theta_old)
        self._current_num_targets = len(sites)
        self._round_started = time.monotonic()
        self._task = task
        self.log_info(fl_ctx, f"round {round_number}: lambda_t = {self._atsa.lambda_t:.4f}, sites {', '.join(sites)}")
        super().broadcast_and_wait(
            task=task, fl_ctx=fl_ctx, targets=sites, min_responses=len(sites), abort_signal=abort_signal
        )
        gathered = self.aggregator.close_round(fl_ctx)
        if abort_signal is not None and abort_signal.triggered:
            return
        if len(gathered.accepted) < self._min_clients:
            reasons = "; ".join(f"{site}: {reason}" for site, reason in sorted(gathered.refused.items()))
            self.system_panic(
                f"round {round_number}: {len(gathered.accepted)} good update(s), the quorum federation.min_sites is "
                f"{self._min_clients} ({reasons}). The last finished round is saved: resubmit the job to go on from it",
                fl_ctx,
            )

    def _write_task(
        self, theta: Mapping[str, torch.Tensor], sites: Sequence[str], fl_ctx: FLContext
    ) -> SignedCheckpoint | None:
        """What goes to the sites, before it goes; the server's checkpoint goes with it."""
        record = audit(fl_ctx)
        if record.party:
            sent = payload(theta)
            for site in sites:
                record.write(
                    Kind.TASK_SENT, peer=site, round=self._current_round, payload=sent, lambda_t=self._atsa.lambda_t
                )
        return record.checkpoint()

    def _accept_train_result(
        self, client_name: str, result: Shareable, fl_ctx: FLContext, is_unknown_task: bool = False
    ) -> bool:
        code = result.get_return_code()
        if code != ReturnCode.OK:
            # A site's free text is not repeated in the server's log: only a known code, reason and rule are.
            reason = parse_reason(result.get_header(REASON_HEADER))
            rule = parse_rule(result.get_header(RULE_HEADER))
            details = ": ".join(word.value for word in (reason, rule) if word)
            why = f"the site reports {known_code(code)}" + (f" ({details})" if details else "")
            self.aggregator.refuse(client_name, why, fl_ctx, why)
            return False
        fl_ctx.set_prop(SENDER_PROP, client_name, private=True, sticky=False)
        accepted = super()._accept_train_result(client_name, result, fl_ctx, is_unknown_task)
        self._wait_no_longer_than_needed()
        return accepted

    def _wait_no_longer_than_needed(self) -> None:
        """Once the quorum's updates are in, give the remaining sites ``wait_after_quorum`` seconds."""
        task, gathered = self._task, self.aggregator.round
        if task is None or task.completion_status is not None or len(gathered.accepted) != self._min_clients:
            return
        elapsed = time.time() - task.schedule_time
        task.timeout = min(task.timeout, int(elapsed) + 1 + self._wait_time_after_min_received)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Adapt lambda_t once the new global model is there; answer ``show_stats``."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.END_RUN:
            audit(fl_ctx).note(Kind.JOB_PROCESS_STOPPED, Outcome.SUCCESS)
        elif event_type == AppEventType.AFTER_SHAREABLE_TO_LEARNABLE:
            # FLARE swallows what an event handler raises: a failure here must still end the job.
            try:
                self._finish_round(fl_ctx)
            except Exception as error:
                self.system_panic(f"round {self._current_round} could not be finished: {error}", fl_ctx)
        elif event_type == InfoCollector.EVENT_TYPE_GET_STATS:
            collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR, None)
            if isinstance(collector, GroupInfoCollector):
                collector.add_info(STATS_GROUP, self.progress())

    def _finish_round(self, fl_ctx: FLContext) -> None:
        gathered = self.aggregator.round
        lambda_t = self._atsa.lambda_t
        delta = instability(self._global_weights[ModelLearnableKey.WEIGHTS], self._theta_old, self._trainable)
        lambda_next = self._atsa.update(delta)
        validation = self._monitor.update(
            self._current_round, _reported("events", gathered.accepted), _reported("validation", gathered.accepted)
        )
        if validation is not None and validation.best:
            self._best = self._theta_old
        record = RoundRecord(
            round=self._current_round,
            participants=sorted(gathered.accepted),
            refused=dict(sorted(gathered.refused.items())),
            lambda_t=lambda_t,
            lambda_next=lambda_next,
            instability=delta,
            phase=self._atsa.phase,
            losses=_reported("losses", gathered.accepted),
            n_samples=_reported("n_samples", gathered.accepted),
            claims=_reported("claim", gathered.accepted),
            ledger_heads=_reported("ledger_head", gathered.accepted),
            global_claim=self._global_claim(len(gathered.targets)),
            validation=validation,
            bytes=dict(sorted(gathered.bytes.items())),
            seconds=time.monotonic() - self._round_started,
        )
        self._write_aggregate(record, gathered, fl_ctx)
        self._records.append(record)
        self._ledger_heads |= record.ledger_heads
        self._global_weights[ModelLearnableKey.META] = {
            NEXT_ROUND: self._current_round + 1,
            ATSA_STATE: self._atsa.state_dict(),
            MONITOR_STATE: self._monitor.state_dict(),
            BEST: self._best,
            RECORD: record,
        }
        self.log_info(
            fl_ctx,
            f"round {self._current_round}: instability = {delta:.5f}, next lambda_t = {lambda_next:.4f}, phase "
            f"{record.phase}, accepted {len(record.participants)}, refused {len(record.refused)}",
        )
        if self._monitor.stopped:
            self._num_rounds = self._current_round + 1 - self._start_round
            self.log_info(fl_ctx, f"round {self._current_round}: no better validation for long enough: this is the end")
        is_last = self._current_round + 1 == self._config.federation.rounds
        if is_last and (warning := self._atsa.warning()):
            self.log_warning(fl_ctx, warning)

    def _write_aggregate(self, record: RoundRecord, gathered: RoundOfUpdates, fl_ctx: FLContext) -> None:
        log = audit(fl_ctx)
        if log.party is None:
            return
        claim = record.global_claim
        log.write(
            Kind.AGGREGATED,
            round=record.round,
            participants={site: self._config.weight(meta.n_samples) for site, meta in gathered.accepted.items()},
            payload=payload(encode(self._global_weights[ModelLearnableKey.WEIGHTS], self._config)),
            instability=record.instability,
            lambda_t=record.lambda_t,
            privacy=Privacy(mode="client_dp", unit=claim.unit, epsilon_after=claim.epsilon_unit, delta=claim.delta)
            if claim
            else None,
        )
        log.checkpoint()

    def _global_claim(self, sites: int) -> PrivacyClaim | None:
        """client_dp: what all global models so far say about one hospital; each round that was sent is one step.

        A round that a restart repeats counts once: its first result was saved nowhere and sent to nobody.
        """
        privacy = self._config.privacy
        if privacy.mode != "client_dp":
            return None
        steps = self._current_round + 1
        return PrivacyClaim(
            unit="hospital",
            units=sites,
            noise_multiplier=privacy.noise_multiplier,
            sample_rate=1.0,  # the draw of the sites is visible: no amplification
            steps=steps,
            delta=privacy.delta,
            epsilon_unit=epsilon_unit([Charge(privacy.noise_multiplier, 1.0, steps)], privacy.delta),
            epsilon_record=None,
        )

    def progress(self) -> dict[str, Any]:
        """The running round and the records of this job's finished ones, as plain JSON."""
        gathered = self.aggregator.round if isinstance(self.aggregator, FedADAggregator) else None
        return {
            "experiment": self._config.federation.experiment,
            "rounds": self._config.federation.rounds,
            "current_round": self._current_round,
            "lambda_t": self._atsa.lambda_t,
            "answered": sorted(gathered.accepted) if gathered else [],
            "targets": sorted(gathered.targets) if gathered else [],
            "records": [record.model_dump(mode="json") for record in self._records],
        }
