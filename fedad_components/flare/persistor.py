"""Where the global model comes from and where it goes: checkpoint of the experiment, results of the job."""

from __future__ import annotations

import json
from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.model import ModelLearnable, ModelLearnableKey, make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor

from fedad_components import checkpoint, records
from fedad_components.algorithms import algorithm_of, initial_state
from fedad_components.audit.event import Kind
from fedad_components.checkpoint import Checkpoint
from fedad_components.files import FileLock, write_atomic
from fedad_components.flare.audit import audit
from fedad_components.flare.context import configuration
from fedad_components.flare.site import SitePaths
from fedad_components.ledger_heads import read_heads, remember_heads
from fedad_components.records import RoundRecord, append_record, read_records

NEXT_ROUND = "next_round"
ATSA_STATE = "atsa"
MONITOR_STATE = "monitor"
BEST = "best"
RECORD = "record"
LEDGER_HEADS = "ledger_heads"

RESULTS_DIR = "fedad"
"""Folder in the job's run folder: what ``download_job`` brings to the operator."""
LAST_FILE = "last.safetensors"
"""The last round's weights, where those of another round did better on the sites' validation patients."""
CONFIG_FILE = "config.json"


class FedADPersistor(ModelPersistor):
    """Keeps ``checkpoint.safetensors`` and ``rounds.jsonl`` in the server's ``local/fedad/experiments/<experiment>/``.

    They outlive the job's run folder, so that a resubmitted job goes on where the last one stopped.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock: FileLock | None = None

    def load_model(self, fl_ctx: FLContext) -> ModelLearnable:
        """The checkpoint's model, or round 0's initial weights; its meta says which round comes next.

        Raises:
            LockedError: another job runs this experiment.
            CheckpointError: the checkpoint is damaged or of another configuration.
            RecordsError: the rounds' records beside it are missing or damaged.
            StateError: the initial weights' file does not fit.
            LedgerHeadsError: the memory of the sites' privacy ledgers is damaged.
        """
        config = configuration(fl_ctx)
        site = SitePaths.from_context(fl_ctx)
        folder = site.experiment(config.federation.experiment)
        self._lock = FileLock(folder / "lock")
        self._lock.acquire()
        path = folder / checkpoint.FILE_NAME
        heads = read_heads(site.ledger_heads)
        if path.exists():
            saved = Checkpoint.load(path, config.identity())
            self.log_info(
                fl_ctx,
                f"experiment {config.federation.experiment!r} resumes at round "
                f"{saved.next_round} with lambda_t = {saved.atsa.get('lambda_t')}",
            )
            audit(fl_ctx).write(Kind.MODEL_RESUMED, round=saved.next_round)
            # The job that finished those rounds may have died before its operator could download them.
            self._write_results(saved, fl_ctx)
            told = [record.ledger_heads for record in read_records(folder / records.FILE_NAME)]
            heads = {site: head for earlier in (*told, heads) for site, head in earlier.items()}
            return make_model_learnable(
                saved.theta,
                {
                    NEXT_ROUND: saved.next_round,
                    ATSA_STATE: saved.atsa,
                    MONITOR_STATE: saved.monitor,
                    BEST: saved.best,
                    LEDGER_HEADS: heads,
                },
            )
        theta = initial_state(config, site.root)
        return make_model_learnable(
            theta, {NEXT_ROUND: 0, ATSA_STATE: None, MONITOR_STATE: {}, BEST: {}, LEDGER_HEADS: heads}
        )

    def save_model(self, model: ModelLearnable, fl_ctx: FLContext) -> None:
        """Write the round's record, the checkpoint, and the job's results, in this order.

        A crash in between repeats the round, whose record then replaces this one.
        """
        config = configuration(fl_ctx)
        folder = SitePaths.from_context(fl_ctx).experiment(config.federation.experiment)
        theta, meta = model[ModelLearnableKey.WEIGHTS], model[ModelLearnableKey.META]
        record: RoundRecord = meta[RECORD]
        # First: a head too new is refused, and mended by the round that is repeated; one that is forgotten, never.
        remember_heads(SitePaths.from_context(fl_ctx).ledger_heads, record.ledger_heads)
        append_record(folder / records.FILE_NAME, record)
        saved = Checkpoint(
            theta, meta[NEXT_ROUND], meta[ATSA_STATE], config.identity(), meta[MONITOR_STATE], meta[BEST]
        )
        saved.save(folder / checkpoint.FILE_NAME)
        audit(fl_ctx).write(Kind.MODEL_SAVED, round=record.round)
        self._write_results(saved, fl_ctx)

    @staticmethod
    def _write_results(saved: Checkpoint, fl_ctx: FLContext) -> None:
        config = configuration(fl_ctx)
        folder = SitePaths.from_context(fl_ctx).experiment(config.federation.experiment)
        results = Path(fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())) / RESULTS_DIR
        results.mkdir(exist_ok=True)
        write_atomic(results / records.FILE_NAME, (folder / records.FILE_NAME).read_bytes())
        write_atomic(results / CONFIG_FILE, json.dumps(config.to_json(), indent=1).encode("utf-8"))
        algorithm = algorithm_of(config)
        last = {"rounds": str(saved.next_round)}
        described = {name: json.dumps(value) for name, value in saved.monitor.items()}
        if saved.best:
            algorithm.save_model(results / LAST_FILE, saved.theta, config, described | last)
        algorithm.save_model(
            results / algorithm.model_file,
            saved.best or saved.theta,
            config,
            described | ({"rounds": described["best_round"]} if saved.best else last),
        )
