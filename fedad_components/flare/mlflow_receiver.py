"""FLARE's MLflow receiver for the server's own numbers. Needs the extra ``mlflow``."""

from __future__ import annotations

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, TrackConst
from nvflare.apis.fl_context import FLContext
from nvflare.app_opt.tracking.mlflow.mlflow_receiver import MLflowReceiver


class ServerMLflowReceiver(MLflowReceiver):
    """One MLflow run, the server's, in ``mlflow.db`` in the job's run folder.

    FLARE's own opens a run for each site and has none for the server. A tracking URI is no argument: a job could name
    any address with it, and the server would send there.
    """

    def __init__(self, experiment: str) -> None:
        """``experiment`` is MLflow's name of it, by default the configuration's."""
        self.experiment = experiment
        super().__init__(kw_args={TrackConst.EXPERIMENT_NAME: experiment}, events=[ANALYTIC_EVENT_TYPE])

    def _mlflow_setup(
        self,
        art_full_path: str,
        experiment_name: str,
        experiment_tags: dict[str, str],
        site_names: list[str],
        fl_ctx: FLContext,
    ) -> None:
        super()._mlflow_setup(art_full_path, experiment_name, experiment_tags, [fl_ctx.get_identity_name()], fl_ctx)

    def _init_buffer(self, site_names: list[str]) -> None:
        super()._init_buffer([*self.run_ids])
