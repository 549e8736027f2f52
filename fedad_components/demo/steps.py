"""What the demos of all jobs have in common: a new folder, a federation that runs one job, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from fedad_components import records
from fedad_components.demo.federation import Federation, FederationError
from fedad_components.files import write_atomic
from fedad_components.flare.controller import STATS_GROUP
from fedad_components.flare.persistor import RESULTS_DIR
from fedad_components.flare.provision import KitError
from fedad_components.flare.recipe import ExperimentRecipe, export_job
from fedad_components.imaging.catalogue import VERSION as CATALOGUE_VERSION
from fedad_components.records import RoundRecord, read_records

COMPLETED = "FINISHED:COMPLETED"
SUMMARY_FILE = "summary.json"
REPORT_FILE = "report.html"


class DemoError(RuntimeError):
    """A demo that could not run; the message says why, and what to do."""


@dataclass(frozen=True)
class Hospital:
    """A site of the demo.

    Attributes:
        entry: of its catalogue, for the data set that the job names.
        policy: rules beside the defaults.
    """

    entry: Mapping[str, Any]
    policy: Mapping[str, Any]


@dataclass(frozen=True)
class Finished:
    """A job that has ended.

    Attributes:
        job_id: FLARE's.
        status: FLARE's.
        results: folder of what the operator downloaded; None if the job did not finish a round.
        rounds: the finished ones.
    """

    job_id: str
    status: str
    results: Path | None
    rounds: list[RoundRecord]


def new_folder(out: Path) -> Path:
    """Make the demo's folder; DemoError if it holds something already."""
    out = out.resolve()
    if out.exists() and any(out.iterdir()):
        raise DemoError(f"{out} is not empty: choose a new folder, or remove it")
    out.mkdir(parents=True, exist_ok=True)
    return out


def say(console: Console, line: str) -> None:
    """A line as it is: not as Rich's markup, which would take a refusal in its brackets for a style."""
    console.print(line, highlight=False, soft_wrap=True, markup=False)


def federate(
    out: Path,
    recipe: ExperimentRecipe[Any],
    hospitals: Mapping[str, Hospital],
    console: Console,
    told: Callable[[RoundRecord], str],
) -> Finished:
    """Kits, catalogues, processes, one job and its result; steps 2 to 5 of a demo. Nothing is left running.

    Args:
        out: the demo's folder.
        recipe: of the job.
        hospitals: by name.
        told: a finished round in words.

    Raises:
        DemoError: if the federation does not do what it should in time.
    """
    config = recipe.config
    try:
        say(console, f"2. kits for a server, {len(hospitals)} hospitals and an operator")
        with Federation(out / "federation", sites=list(hospitals)) as federation:
            for site, hospital in hospitals.items():
                entries = {config.federation.data_set: dict(hospital.entry)}
                catalogue = yaml.safe_dump({"version": CATALOGUE_VERSION, "data_sets": entries}, sort_keys=False)
                write_atomic(federation.site_paths(site).catalogue, catalogue.encode("utf-8"))
                federation.set_policy(site, **hospital.policy)
            say(console, "3. starting them: FLARE processes, mutual TLS over loopback")
            federation.start()
            job_id = federation.submit(export_job(recipe, out / "jobs"))
            say(console, f"4. job {job_id} submitted with the operator's kit")
            console.print("   the first round takes a minute or two: each site starts PyTorch", style="dim")
            rounds = config.federation.rounds
            progress = _Progress(federation, job_id, rounds, told, console)
            status = federation.wait(job_id, timeout=600 + 600 * rounds, on_poll=progress)
            say(console, f"5. {status}; downloading the result")
            results = _download(federation, job_id, out / "result")
            finished = read_records(results / records.FILE_NAME) if results else []
            progress.show(finished)  # those that ended after the last look
            if status != COMPLETED:
                say(console, federation.server_log(job_id)[-2000:])
    except (FederationError, KitError) as error:
        raise DemoError(str(error)) from error
    return Finished(job_id, status, results, finished)


def _download(federation: Federation, job_id: str, dest: Path) -> Path | None:
    """The folder with ``rounds.jsonl`` in the downloaded result; None if the job did not finish a round."""
    dest.mkdir(exist_ok=True)
    federation.download(job_id, dest)
    found = next(dest.rglob(f"{RESULTS_DIR}/{records.FILE_NAME}"), None)
    return found.parent if found else None


class _Progress:
    """Prints a line for each finished round, from what FLARE's ``show_stats`` tells the operator."""

    def __init__(
        self,
        federation: Federation,
        job_id: str,
        rounds: int,
        told: Callable[[RoundRecord], str],
        console: Console,
    ) -> None:
        self._federation, self._job_id, self._rounds, self._told = federation, job_id, rounds, told
        self._console = console
        self._printed = 0
        self._line = ""

    def __call__(self, status: str) -> None:
        if status != "RUNNING":
            self._say(f"   {status.lower()}")
            return
        stats = self._stats()
        self.show([RoundRecord.model_validate(record) for record in stats.get("records", [])])
        if targets := stats.get("targets"):
            weight = f"lambda_t {stats['lambda_t']:.3f}, " if stats["lambda_t"] else ""
            self._say(
                f"   round {self._of(stats['current_round'])}: {weight}{len(stats['answered'])} of {len(targets)} "
                f"sites answered"
            )

    def show(self, rounds: list[RoundRecord]) -> None:
        """Print those rounds that have not been printed yet."""
        for record in rounds[self._printed :]:
            refused = "".join(f"  [{site}: {reason}]" for site, reason in record.refused.items())
            say(self._console, f"   round {self._of(record.round)}: {self._told(record)}{refused}")
            self._printed += 1

    def _of(self, number: int) -> str:
        """A round by its number, from 0 as everywhere else, and the last one."""
        return f"{number} of 0-{self._rounds - 1}"

    def _say(self, line: str) -> None:
        if line != self._line and self._console.is_terminal:
            self._console.print(line, style="dim", highlight=False)
        self._line = line

    def _stats(self) -> dict[str, Any]:
        try:
            reply = self._federation.session().show_stats(self._job_id, "server")
        except Exception:  # a job that starts or ends has no stats; FLARE raises several kinds then
            return {}
        return reply.get("server", {}).get(STATS_GROUP, {})
