"""FedADRecipe: FedAD as FLARE's users expect an algorithm, in the simulator, in production, or as an exported job.

Example::

    from nvflare.recipe import ProdEnv

    recipe = FedADRecipe(FedADConfig.parse({"federation": {"data_set": "chest-xray", "rounds": 40}}))
    recipe.export("jobs")                                  # jobs/fedad_job: submit it as it is
    run = recipe.run(ProdEnv("kits/lead@consortium.org"))  # or submit it from here
"""

from __future__ import annotations

import shutil
from pathlib import Path

from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe

from fedad_components.config import FedADConfig
from fedad_components.flare.aggregator import FedADAggregator
from fedad_components.flare.controller import TRAIN_TASK, FedADController
from fedad_components.flare.executor import FedADExecutor
from fedad_components.flare.persistor import FedADPersistor
from fedad_components.flare.shareable_generator import FedADShareableGenerator

JOB_NAME = "fedad_job"


class FedADRecipe(Recipe):
    """One experiment: controller, gate, persistor and executor around one configuration, and no job code.

    Server and sites get the same configuration and compare its digest in every round. The job's folder holds JSON only,
    so that sites which forbid custom code (BYOC) run it.
    """

    def __init__(self, config: FedADConfig | None = None, *, name: str = JOB_NAME) -> None:
        """
        Args:
            config: the experiment; by default the paper's form.
            name: FLARE's name of the job. The experiment's own name is ``config.federation.experiment``.
        """
        self.config = config or FedADConfig.parse({})
        data = self.config.to_json()
        job = FedJob(name=name, min_clients=self.config.federation.min_sites)
        job.set_app_packages(
            ["fedad_components"]
        )  # every site has the package installed: nothing is copied into the job
        job.to_server(FedADPersistor(), id="persistor")
        job.to_server(FedADShareableGenerator(), id="shareable_generator")
        job.to_server(FedADAggregator(), id="aggregator")
        job.to_server(FedADController(data))
        job.to_clients(FedADExecutor(data), tasks=[TRAIN_TASK])
        super().__init__(job)


def export_job(recipe: FedADRecipe, out: str | Path) -> Path:
    """Write ``out/<name>`` anew and return it; files of an earlier export do not linger in it."""
    target = Path(out) / recipe.name
    if target.exists():
        shutil.rmtree(target)
    recipe.export(str(out))
    return target
