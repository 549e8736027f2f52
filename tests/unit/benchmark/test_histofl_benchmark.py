"""Runs of HistoFL's benchmark: what is trained and tested, kept, repeated and shown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from histofl_data import write_brca, write_kirc, write_musk
from typer.testing import CliRunner

from fedad_components.benchmark.histofl import kirc, musk
from fedad_components.benchmark.histofl.outcome import Outcome
from fedad_components.benchmark.histofl.page import markdown
from fedad_components.benchmark.histofl.results import StudyResults, open_study
from fedad_components.benchmark.histofl.run import Run, execute, outcomes_in
from fedad_components.benchmark.histofl.studies import STUDIES
from fedad_components.benchmark.results import ResultsError
from fedad_components.cli import app
from fedad_components.mil.evaluate_survival import Survived
from fedad_components.mil.survival_metrics import c_index
from fedad_components.records import read_records


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_musk(folder, molecules=42)
    write_kirc(folder, patients=180)
    write_brca(folder, patients=20, without_events="Canada")
    return folder


def run_of(data: Path, out: Path, study: str, variant: str, seed: int = 0, epochs: int = 2) -> Run:
    return Run(study, variant, seed, data, out, epochs)


def test_everybody_is_tested_on_the_same_molecules(data: Path, tmp_path: Path) -> None:
    tested = {
        name: execute(run_of(data, tmp_path, "musk", name)).classified
        for name in ("central", "alone-2", "federated", "alpha-1")
    }
    true = {name: {site: found.true for site, found in of_run.items()} for name, of_run in tested.items()}
    assert true["central"] == true["alone-2"] == true["federated"] == true["alpha-1"]
    assert list(true["central"]) == list(musk.SITES)
    records = {name: read_records(run_of(data, tmp_path, "musk", name).records)[0] for name in tested}
    assert records["central"].participants == ["central"]
    assert records["alone-2"].participants == ["site 2"]
    assert records["federated"].participants == records["alpha-1"].participants == list(musk.SITES)
    assert len({record.instability for record in records.values()}) == 4  # each has learnt something else
    assert records["central"].n_samples == {"central": sum(records["federated"].n_samples.values())}


def test_a_run_is_done_once(data: Path, tmp_path: Path) -> None:
    run = run_of(data, tmp_path, "musk", "E-2")
    first = execute(run)
    config = json.loads((run.folder / "config.json").read_text())
    assert (config["training"]["epochs"], config["federation"]["rounds"], first.rounds) == (2, 2, 2)
    # the sites' training molecules, E = 2 epochs, and one round more that validates
    records = read_records(run.records)
    assert first.steps == 2 * sum(sum(record.n_samples.values()) for record in records)
    before = run.outcome.stat().st_mtime_ns
    assert execute(run) == first
    assert run.outcome.stat().st_mtime_ns == before
    run.outcome.unlink()  # as if it had been interrupted
    again = execute(run)
    assert (again.classified, again.last) == (first.classified, first.last)
    assert len(read_records(run.records)) == 2


def test_survival_is_surveyed_and_its_groups_are_cut_on_training_patients(data: Path, tmp_path: Path) -> None:
    run = run_of(data, tmp_path, "kirc", "federated", epochs=1)
    found = execute(run)
    records = read_records(run.records)
    assert len(records) == run.rounds == 3  # survey, one epoch, and the last validation
    assert not records[0].losses
    assert list(found.survived) == list(kirc.SITES)
    tested = found.whole
    assert isinstance(tested, Survived)
    below = (tested.risks <= found.cuts[0]).mean()
    assert len(found.cuts) == 1
    assert 0 < below < 1
    assert below != 0.5  # half of those trained on, not of those tested


def test_grade_untrained_is_the_grade(data: Path, tmp_path: Path) -> None:
    run = run_of(data, tmp_path, "kirc", "grade")
    found, cohort = execute(run), kirc.load(data)
    splits = cohort.splits(run.config(3))
    rows = [row for site, bags in cohort.sites.items() for row in bags.rows if row.owner in splits[site].test]
    times, events = [row.target.time for row in rows], [row.target.event for row in rows]  # type: ignore[union-attr]
    expected = c_index(times, events, [cohort.scores["grade"][row.owner] for row in rows])
    assert found.whole.scores() == {"c-index": pytest.approx(expected)}
    assert (found.steps, found.rounds, found.last) == (0, 0, None)


def test_a_region_without_events_cannot_train_alone_and_the_page_says_why(data: Path, tmp_path: Path) -> None:
    alone = execute(run_of(data, tmp_path, "brca", "alone-6", epochs=1))
    assert alone.impossible is not None
    assert "told an event" in alone.impossible
    assert not alone.runs()
    together = execute(run_of(data, tmp_path, "brca", "federated", epochs=1))
    assert together.impossible is None
    text = markdown(STUDIES["brca"], open_study(tmp_path, "brca", "fedad"), outcomes_in(tmp_path, STUDIES["brca"]))
    assert f"- Canada alone, seed 0: not trained: {alone.impossible}." in text
    canada = next(line for line in text.splitlines() if line.startswith("| federated |") and line.count("|") == 8)
    assert canada.endswith("| – |")  # no c-index without an event


def test_the_command_goes_on_where_it_stopped(data: Path, tmp_path: Path) -> None:
    command = ["benchmark", "histofl", "--data", str(data), "--study", "musk", "--out", str(tmp_path / "out")]
    command += ["--seeds", "0-1", "--epochs", "1", "--methods"]
    for seed in (0, 1):
        for name in ("central", "federated"):
            execute(run_of(data, tmp_path / "out", "musk", name, seed, epochs=1))
    done = CliRunner().invoke(app, [*command, "central,federated"])
    assert done.exit_code == 0, done.output
    assert "4 runs, 4 of them done before" in done.output
    results = StudyResults.model_validate_json((tmp_path / "out" / "results.json").read_text())
    assert [(run.method, run.seed) for run in results.runs] == [
        ("central", 0),
        ("central", 1),
        ("federated", 0),
        ("federated", 1),
    ]
    assert set(results.runs[0].scores) == {*musk.SITES, "all sites"}
    text = (tmp_path / "out" / "results.md").read_text()
    whole = [run.scores["all sites"]["AUC"] or 0.0 for run in results.runs if run.method == "federated"]
    assert f"| federated | 2 | {np.mean(whole):.3f} ± {np.std(whole, ddof=1):.3f} |" in text
    page = (tmp_path / "out" / "results.html").read_text()
    for said in ("central: ROC and confusion", "federated: ROC and confusion", "all sites", "AUC .914"):
        assert said in page


@pytest.mark.slow
def test_the_command_runs_what_is_missing(data: Path, tmp_path: Path) -> None:
    command = ["benchmark", "histofl", "--data", str(data), "--study", "brca", "--out", str(tmp_path)]
    command += ["--seeds", "0-1", "--epochs", "1", "--workers", "2", "--methods", "federated,alone-6"]
    execute(run_of(data, tmp_path, "brca", "federated", 1, epochs=1))
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "4 runs, 1 of them done before" in done.output
    assert "Canada alone, seed 0: nothing to train" in done.output
    found = outcomes_in(tmp_path, STUDIES["brca"])
    assert [(outcome.method, outcome.seed) for outcome in found] == [
        ("alone-6", 0),
        ("alone-6", 1),
        ("federated", 0),
        ("federated", 1),
    ]
    assert "survival by predicted risk" in (tmp_path / "results.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_a_benchmark_that_is_ended(data: Path, tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", "from fedad_components.cli import main; main()"]
    command += ["benchmark", "histofl", "--data", str(data), "--study", "kirc", "--out", str(tmp_path)]
    command += ["--seeds", "0-9", "--epochs", "1000", "--workers", "2", "--methods", "central,federated"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as benchmark:
        started = psutil.Process(benchmark.pid)
        try:
            deadline = time.monotonic() + 120
            while len(list(tmp_path.rglob("rounds.jsonl"))) < 2:
                assert benchmark.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
            workers = started.children(recursive=True)
            assert len(workers) >= 2
            benchmark.send_signal(number)
            benchmark.wait(30)
            _, alive = psutil.wait_procs(workers, timeout=10)
            assert not alive
        finally:
            benchmark.kill()
    assert benchmark.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -9}[number]


def test_what_cannot_be_run_is_said_at_once(data: Path, tmp_path: Path) -> None:
    def said(*changes: str) -> str:
        options = {"--data": str(data), "--study": "musk", "--out": str(tmp_path / "out"), "--methods": "central"}
        options |= dict(zip(changes[::2], changes[1::2], strict=True))
        result = CliRunner().invoke(app, ["benchmark", "histofl", *(part for pair in options.items() for part in pair)])
        assert result.exit_code == 1
        assert not (tmp_path / "out" / "runs").exists()
        return " ".join(result.output.split())

    assert "'centre': expected one of central, alone-1" in said("--methods", "centre")
    assert "expected whole numbers with commas" in said("--seeds", "0-1-2")
    assert "--data names the folder with mil/ and survival/" in said("--data", str(tmp_path))
    (tmp_path / "outcome.json").write_text("{")
    with pytest.raises(ResultsError, match=r"(?s)outcome\.json: no outcome of a run .*: remove it"):
        Outcome.load(tmp_path / "outcome.json")
    open_study(tmp_path / "out", "kirc, 8 epochs", "fedad benchmark histofl")
    assert "choose another --out" in said()
    (tmp_path / "out" / "results.json").write_text("{}")
    with pytest.raises(ResultsError, match="no results of a study of HistoFL"):
        open_study(tmp_path / "out", "musk, 30 epochs", "")


def test_an_outcome_names_no_patient(data: Path, tmp_path: Path) -> None:
    run = run_of(data, tmp_path, "kirc", "stage")
    execute(run)
    text = run.outcome.read_text()
    patients = {row.owner for bags in kirc.load(data).sites.values() for row in bags.rows}
    assert not any(f'"{patient}"' in text for patient in patients)
    assert Outcome.model_validate_json(text).survived


@pytest.mark.slow
def test_musk1_is_learnt_together_and_drowned_by_noise(tmp_path: Path) -> None:
    folder = os.environ.get("FEDAD_DATA")
    if not folder or not (Path(folder) / musk.FILE).is_file():
        pytest.skip("needs FEDAD_DATA")
    last = {
        name: [execute(run_of(Path(folder), tmp_path, "musk", name, seed, epochs=16)).last for seed in range(seeds)]
        for name, seeds in (("federated", 3), ("alpha-1", 5))  # the noise is drawn anew each time
    }
    assert np.mean(last["federated"]) > 0.85  # type: ignore[arg-type]
    assert np.mean(last["alpha-1"]) < np.mean(last["federated"]) - 0.1  # type: ignore[arg-type]
