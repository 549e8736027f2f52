"""FedAD's executor: checks the task, has the training process train it, returns theta_k. The head stays where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from nvflare.apis.dxo import DXO
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedad_components.algorithms import parse_config
from fedad_components.audit.event import Kind, Outcome, Privacy
from fedad_components.audit.log import AuditError
from fedad_components.flare.audit import audit
from fedad_components.flare.context import PRIVACY_PROP, data_kind, register_tensors, set_configuration
from fedad_components.flare.controller import TRAIN_TASK
from fedad_components.flare.ingress import check_task
from fedad_components.flare.site import SiteError, SitePaths, SitePolicy
from fedad_components.privacy.claim import statement
from fedad_components.privacy.policy import PolicyRefused, PrivacyRules
from fedad_components.tensors import decode, encode_update
from fedad_components.wire import (
    REASON_HEADER,
    RULE_HEADER,
    Reason,
    ResultMeta,
    TaskMeta,
    WireError,
    site_key,
)
from fedad_components.worker.process import (
    RoundOrder,
    TrainingAborted,
    TrainingError,
    TrainingProcess,
    WorkerSettings,
)

WORKER_LOG = "fedad_worker.log"


class FedADExecutor(Executor):
    """Trains a round at a site, in a child process that outlives the round.

    Whatever goes wrong is an error of this task: the site's log has the cause, the server gets a reason from a fixed
    vocabulary, and the round goes on without this site.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        """``config`` is the experiment's configuration as JSON."""
        super().__init__()
        register_tensors()
        self.config = config
        self._config = parse_config(config)
        self._worker: TrainingProcess | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Make the configuration known to the site's filters; end the training process with the job."""
        if event_type == EventType.START_RUN:
            set_configuration(fl_ctx, self._config)
        if event_type in (EventType.ABOUT_TO_END_RUN, EventType.END_RUN) and self._worker is not None:
            self._worker.stop()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Train the task; the reply is an update, or an error with its reason."""
        set_configuration(fl_ctx, self._config)
        if task_name != TRAIN_TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            task, tensors = check_task(shareable, self._config)
            rules = self._check_policy(fl_ctx)
            return self._train(task, decode(tensors), rules, fl_ctx, abort_signal)
        except TrainingAborted:
            return make_reply(ReturnCode.TASK_ABORTED)
        except TrainingError as error:
            self._write_refusal(error.reason, fl_ctx)
            return self._failure(error.reason, error, fl_ctx, error.rule)
        except AuditError as error:
            return self._failure(Reason.STATE_REFUSED, error, fl_ctx)
        except WireError as error:
            return self._failure(Reason.TASK_REFUSED, error, fl_ctx)
        except PolicyRefused as error:
            return self._failure(Reason.POLICY_REFUSED, error, fl_ctx, error.rule.value)
        except SiteError as error:
            return self._failure(Reason.POLICY_REFUSED, error, fl_ctx)
        except Exception as error:
            self.log_exception(fl_ctx, "unexpected error")  # with its traceback
            return self._failure(Reason.TRAINING_FAILED, error, fl_ctx)

    def _check_policy(self, fl_ctx: FLContext) -> PrivacyRules:
        """The site's rules for the job's data set; PolicyRefused if the job is below one of them."""
        policy = SitePolicy.load(SitePaths.from_context(fl_ctx).policy)
        policy.check(self._config)
        return policy.rules(self._config.federation.data_set)

    def _train(
        self,
        task: TaskMeta,
        theta: dict[str, torch.Tensor],
        rules: PrivacyRules,
        fl_ctx: FLContext,
        abort_signal: Signal,
    ) -> Shareable:
        site = fl_ctx.get_identity_name()
        worker, record = self._training_process(site, fl_ctx), audit(fl_ctx)

        def opened(images: int) -> None:
            record.write(Kind.DATA_SET_OPENED, data_set=self._config.federation.data_set, images=images)

        def charged(privacy: dict[str, Any]) -> None:
            cost = Privacy.model_validate(privacy)
            record.write(Kind.LEDGER_CHARGED, round=task.round, data_set=cost.data_set, privacy=cost)
            fl_ctx.set_prop(PRIVACY_PROP, cost, private=True, sticky=False)

        self.log_info(fl_ctx, f"round {task.round}: training starts, lambda_t = {task.lambda_t:.4f}")
        trained = worker.train(
            theta,
            RoundOrder(
                round=task.round,
                lambda_t=task.lambda_t,
                rules=rules.model_dump(mode="json"),
                known_ledger_head=task.ledger_heads.get(site_key(task.experiment, site)),
                bin_edges=task.bin_edges,
            ),
            timeout=self._config.federation.round_timeout,
            should_stop=lambda: bool(abort_signal.triggered),
            on_epoch=lambda epoch, losses: self.log_info(
                fl_ctx,
                f"round {task.round}, epoch {epoch + 1}/{self._config.training.epochs}"
                + "".join(f", {name} = {value:.4f}" for name, value in losses.items()),
            ),
            on_opened=opened,
            on_charged=charged,
        )
        meta = ResultMeta.model_validate({"config_digest": task.config_digest, "round": task.round, **trained.meta})
        self.log_info(
            fl_ctx,
            f"round {task.round}: trained in {trained.seconds:.1f} s. {meta.claim or statement(self._config)}",
        )
        update = encode_update(trained.theta_k, theta, self._config)
        content = meta.model_dump(mode="json", exclude_none=True)
        return DXO(data_kind(self._config), update, content).to_shareable()

    def _training_process(self, site: str, fl_ctx: FLContext) -> TrainingProcess:
        if self._worker is None:
            paths = SitePaths.from_context(fl_ctx)
            job_id = fl_ctx.get_job_id()
            run_dir = Path(fl_ctx.get_engine().get_workspace().get_run_dir(job_id))
            self._worker = TrainingProcess(
                WorkerSettings(
                    config=self.config,
                    site=site,
                    job_id=job_id,
                    catalogue=str(paths.catalogue),
                    state_dir=str(paths.state),
                    cache_dir=str(paths.cache),
                    ledger=str(paths.ledger),
                    ledger_head=str(paths.ledger_head),
                    unit_key=str(paths.unit_key),
                ),
                run_dir / WORKER_LOG,
            )
        return self._worker

    def _write_refusal(self, reason: Reason, fl_ctx: FLContext) -> None:
        """That the ledger, or the data set, was asked for and refused; StrictEgress writes the reason itself."""
        data_set = self._config.federation.data_set
        if reason in (Reason.BUDGET_EXHAUSTED, Reason.LEDGER_REFUSED):
            cost = Privacy(mode=self._config.privacy.mode, data_set=data_set)
            audit(fl_ctx).note(Kind.LEDGER_CHARGED, data_set=data_set, privacy=cost, reason=reason.value)
        elif reason is Reason.DATA_REFUSED:
            audit(fl_ctx).note(Kind.DATA_SET_OPENED, Outcome.FAILED, data_set=data_set, reason=reason.value)

    def _failure(self, reason: Reason, error: Exception, fl_ctx: FLContext, rule: str | None = None) -> Shareable:
        # Not as an event: FLARE would keep it for the console's `show_errors`, and it may name paths.
        self.log_error(fl_ctx, f"task not trained ({reason.value}): {str(error) or repr(error)}", fire_event=False)
        headers = {REASON_HEADER: reason.value} | ({RULE_HEADER: rule} if rule else {})
        return make_reply(ReturnCode.EXECUTION_EXCEPTION, headers)
