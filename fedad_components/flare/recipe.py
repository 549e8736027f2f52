"""FedADRecipe and HistoFLRecipe: algorithms as FLARE's users expect them, in the simulator, in production, or as an
exported job.

Example::

    from nvflare.recipe import ProdEnv, SimEnv

    recipe = FedADRecipe(FedADConfig.parse({"federation": {"data_set": "chest-xray", "rounds": 40}}))
    recipe.export("jobs")  # jobs/fedad_job: submit it as it is
    recipe.run(SimEnv(clients=["a", "b"], extra={"fedad_sites": "simulated"}))  # simulated/a/catalogue.yaml, ...
    recipe.run(ProdEnv(startup_kit_location="kits/lead@example.org", username="lead@example.org"))
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic

from nvflare.fuel.utils.secret_utils import PotentialSecretWarning
from nvflare.job_config.api import FedJob
from nvflare.recipe import SimEnv
from nvflare.recipe.spec import ExecEnv, Recipe

from fedad_components.algorithms import ALGORITHMS, Config
from fedad_components.config import ConfigError, FedADConfig
from fedad_components.files import make_private_dir, write_atomic
from fedad_components.flare.aggregator import FedADAggregator
from fedad_components.flare.allow_list import SERVER_CLASS_ALLOW_LIST
from fedad_components.flare.controller import TRAIN_TASK, FedADController
from fedad_components.flare.executor import FedADExecutor
from fedad_components.flare.persistor import FedADPersistor
from fedad_components.flare.shareable_generator import FedADShareableGenerator
from fedad_components.flare.site import SIMULATED_SITES
from fedad_components.flare.tracking import RoundTracker, Tracker, make_receiver
from fedad_components.mil.config import HistoFLConfig

SITES_DIR = "fedad_sites"
"""Key of SimEnv's ``extra``: the folder with one private folder a simulated site."""


class ExperimentRecipe(Recipe, Generic[Config]):
    """One experiment: controller, gate, persistor and executor around one configuration, and no job code.

    Server and sites get the same configuration and compare its digest in every round. The job's folder holds JSON only,
    so that sites which forbid custom code (BYOC) run it.
    """

    algorithm: ClassVar[str]

    def __init__(
        self, config: Config | None = None, *, name: str | None = None, tracking: Tracker | None = None
    ) -> None:
        """
        Args:
            config: the experiment; by default the paper's form.
            name: FLARE's name of the job; by default ``<algorithm>_job``. The experiment's own name is
                ``config.federation.experiment``.
            tracking: where the server also writes the numbers of each round; by default nowhere but ``rounds.jsonl``.

        Raises:
            TrackerMissing: if the packages of ``tracking`` are not installed.
        """
        self.config = config or ALGORITHMS[self.algorithm][0].parse({})
        data = self.config.to_json()
        job = FedJob(
            name=f"{self.algorithm}_job" if name is None else name, min_clients=self.config.federation.min_sites
        )
        job.set_app_packages(["fedad_components"])  # installed at every site: nothing is copied into the job
        job.to_server(FedADPersistor(), id="persistor")
        job.to_server(FedADShareableGenerator(), id="shareable_generator")
        job.to_server(FedADAggregator(), id="aggregator")
        job.to_server(FedADController(data))
        if tracking:
            job.to_server(RoundTracker(), id="round_tracker")
            job.to_server(make_receiver(tracking, self.config.federation.experiment), id=tracking)
        job.to_clients(FedADExecutor(data), tasks=[TRAIN_TASK])
        super().__init__(job)

    def process_env(self, env: ExecEnv) -> None:
        """Give FLARE's simulator what a kit would bring: the class allow list, and each site's private folder.

        Raises:
            ConfigError: if a simulation does not say where the sites' folders are.
        """
        if not isinstance(env, SimEnv):
            return
        sites = env.get_extra_prop(SITES_DIR) or os.environ.get(SIMULATED_SITES)
        if not sites:
            raise ConfigError(
                f"a simulation needs the sites' folders: pass SimEnv(..., extra={{{SITES_DIR!r}: DIR}}), where "
                f"DIR/<site>/catalogue.yaml names each site's images"
            )
        os.environ[SIMULATED_SITES] = str(Path(sites).resolve())  # inherited by the simulator's processes
        local = make_private_dir(Path(env.workspace_root) / self.name / "local")
        policy = {"format_version": 2, "class_allow_list": list(SERVER_CLASS_ALLOW_LIST)}
        write_atomic(local / "resources.json", json.dumps(policy, indent=2).encode("ascii"))


class FedADRecipe(ExperimentRecipe[FedADConfig]):
    """An experiment of FedAD, or of a method that it is compared with."""

    algorithm = "fedad"


class HistoFLRecipe(ExperimentRecipe[HistoFLConfig]):
    """An experiment of HistoFL: classification or survival from bags of features."""

    algorithm = "histofl"


RECIPES: Mapping[str, type[ExperimentRecipe[Any]]] = {
    recipe.algorithm: recipe for recipe in (FedADRecipe, HistoFLRecipe)
}


def export_job(recipe: ExperimentRecipe[Any], out: str | Path) -> Path:
    """Write ``out/<name>`` anew and return it; files of an earlier export do not linger in it.

    Raises:
        FileExistsError: if that folder holds something else than a job; it is left as it is.
    """
    target = Path(out) / recipe.name
    if target.exists():
        if not (target / "meta.json").is_file():
            raise FileExistsError(f"{target} holds something else than a job (no meta.json): not replaced")
        shutil.rmtree(target)
    with warnings.catch_warnings():
        # FLARE takes a digest, such as model.encoder_sha256, for a secret; a configuration has no place for one.
        warnings.simplefilter("ignore", PotentialSecretWarning)
        recipe.export(str(out))
    return target
