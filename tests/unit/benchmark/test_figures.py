from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from PIL import Image
from sklearn.metrics import auc
from typer.testing import CliRunner

from fedad_components.benchmark.figures import FIGURES, GRID, Material, draw_all, named_lines
from fedad_components.benchmark.logged import RunsError, grouped, read_rows, read_runs
from fedad_components.benchmark.results import Facts, Results, Row
from fedad_components.cli import app
from fedad_components.config import FedADConfig
from fedad_components.evaluation.results import Detail, Evaluation, Result
from fedad_components.evaluation.scores import Intervals, confusion_of, roc_of, scores_of
from fedad_components.plotting import STYLE, spread, text_height, wrapped
from fedad_components.records import Losses, RoundRecord, append_record

ROUNDS = 3
CLASSES = ["a", "b"]


def write_run(folder: Path, config: dict[str, Any], seed: int, losses: bool = True, evaluated: bool = True) -> None:
    folder.mkdir(parents=True)
    parsed = FedADConfig.parse({**config, "seed": seed, "federation": {"experiment": f"e{seed}"}})
    (folder / "config.json").write_text(json.dumps(parsed.to_json()))
    for t in range(ROUNDS):
        of_site = {
            site: Losses(total=4.0 - t, contrastive=3.0 - t + seed + place, alignment=0.1, orthogonality=None)
            for place, site in enumerate(("north", "south"))
        }
        append_record(
            folder / "rounds.jsonl",
            RoundRecord(
                round=t, participants=["north", "south"], lambda_t=0.1 * t, lambda_next=0.1 * t + 0.1,
                instability=0.1 / (t + 1), phase="enforcement" if t else "exploration",
                losses=of_site if losses else {}, n_samples={}, bytes={}, seconds=1.0,
            ),
        )  # fmt: skip
    if evaluated:
        (folder / "evaluation.json").write_text(evaluation(seed).model_dump_json())


def evaluation(seed: int) -> Evaluation:
    true = ["a"] * 10 + ["b"] * 10
    score = np.random.default_rng(seed).uniform(size=20)
    probability = np.stack([score, 1 - score], axis=1)
    detail = Detail(
        classes=CLASSES,
        confusion=confusion_of(true, probability, CLASSES),
        roc=roc_of(true, probability, CLASSES),
        intervals=Intervals(resamples=0, units=20, grouped=False, of={}),
    )
    result = Result(
        name="source", transductive=False, scores=scores_of(true, probability, CLASSES), n_train=5, n_test=20,
        converged=True, detail=detail,
    )  # fmt: skip
    return Evaluation(
        sources={"north": 5}, target="west", n_target=20, target_units=20, image_size=48, seed=seed, results=[result],
        absent={}, notes=[],
    )  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bench")
    settings: dict[str, dict[str, Any]] = {
        "fedad": {},
        "no orthogonality": {"loss": {"gamma": 0.0}},
        "moon": {"method": "moon"},
    }
    rows = []
    for method, config in settings.items():
        for seed in (0, 1):
            write_run(root / "runs" / method / "west" / str(seed), config, seed)
            row = {"f1": 0.4 + 0.1 * seed, "auc": 0.5}
            rows.append(
                Row(
                    method=method, seed=seed, target="west", protocol="source", transductive=False, metrics=row,
                    steps=1, images=1, seconds=1.0, bytes=1,
                )
            )  # fmt: skip
    Results(facts=Facts(preset="quick", command="x", versions={}, date="2026-01-31"), rows=rows).write(
        root / "results.json"
    )
    return root


@pytest.fixture(scope="module")
def drawn(bench: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("figures")
    result = CliRunner().invoke(app, ["figures", str(bench), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "12_site_accuracy: not drawn, no run has a by_round.jsonl" in result.output
    return out


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_picture_is_there_in_three_forms(drawn: Path) -> None:
    names = [name for name in FIGURES if name != "12_site_accuracy"]
    assert sorted(path.name for path in drawn.iterdir()) == sorted(
        f"{name}.{ending}" for name in names for ending in ("svg", "png", "csv")
    )
    for name in names:
        ElementTree.parse(drawn / f"{name}.svg")
        Image.open(drawn / f"{name}.png").verify()


def test_the_data_beside_a_picture_are_those_of_the_runs(drawn: Path) -> None:
    convergence = read(drawn / "07_convergence.csv")
    assert len(convergence) == 3 * 2 * ROUNDS
    assert {row["run"] for row in convergence} == {"fedad", "no orthogonality", "moon"}
    for row in convergence:  # mean of the two sites
        assert float(row["nt_xent"]) == pytest.approx(3.5 - int(row["round"]) + int(row["seed"]))
    assert {row["run"] for row in read(drawn / "11_alignment_weight.csv")} == {"fedad", "no orthogonality"}
    sweep = read(drawn / "06_gamma_sweep.csv")
    assert sorted((float(row["gamma"]), int(row["seed"])) for row in sweep) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    for row in sweep:
        assert float(row["f1"]) == evaluation(int(row["seed"])).results[0].scores.f1
    assert [float(row["f1"]) for row in read(drawn / "13_method_bars.csv")] == [0.4, 0.5] * 3
    counts = [row for row in read(drawn / "14_confusion.csv") if row["run"] == "moon"]
    details = [detail for seed in (0, 1) if (detail := evaluation(seed).results[0].detail)]
    expected = np.sum([detail.confusion for detail in details], axis=0)
    assert [int(row["images"]) for row in counts] == expected.ravel().tolist()


def test_the_mean_curve_has_the_mean_area(drawn: Path) -> None:
    curve = [float(row["true_positive_rate"]) for row in read(drawn / "15_roc.csv") if row["run"] == "moon"]
    areas = [evaluation(seed).results[0].scores.auc or 0.0 for seed in (0, 1)]
    assert auc(GRID, curve) == pytest.approx(np.mean(areas), abs=0.01)
    assert (curve[0], curve[-1]) == (0.0, 1.0)
    assert (np.diff(curve) >= 0).all()


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "quiet", {"method": "moon"}, 0, losses=False, evaluated=False)
    found = draw_all(read_runs([tmp_path]), read_rows([tmp_path]), tmp_path / "out")
    assert list(found.files) == ["09_instability"]
    assert set(found.missing) == set(FIGURES) - {"09_instability"}
    assert found.missing["10_phases"] == "no finished round of method fedad"
    assert "privacy" in found.missing["07_convergence"]
    assert "evaluation.json" in found.missing["15_roc"]


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"method": "moon"}, 0, losses=False, evaluated=False)
    first, second = (draw_all(read_runs([tmp_path]), [], tmp_path / name).files["09_instability"] for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_seeds_are_put_together_and_nothing_else(bench: Path) -> None:
    groups = grouped(read_runs([bench]))
    assert {group.label: [run.config.seed for run in group.runs] for group in groups} == {
        "fedad": [0, 1],
        "moon": [0, 1],
        "no orthogonality": [0, 1],
    }


def test_odd_names_and_files(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "$x$ $\\foo{$" / "0", {}, 0)
    write_run(tmp_path / "a" / "b" / "0", {"loss": {"gamma": 0.0}}, 0)
    assert "07_convergence" in draw_all(read_runs([tmp_path / "a"]), [], tmp_path / "out").files
    write_run(tmp_path / "late", {}, 0)
    records = tmp_path / "late" / "rounds.jsonl"
    last = json.loads(records.read_text().splitlines()[-1])
    records.write_text(records.read_text() + json.dumps({**last, "round": 10**12}) + "\n")
    with pytest.raises(RunsError, match=r"late.rounds\.jsonl: round 1,000,000,000,000: expected fewer than 100,000"):
        read_runs([tmp_path / "late"])
    write_run(tmp_path / "text", {}, 0)
    (tmp_path / "text" / "by_round.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(RunsError, match=r"by_round\.jsonl: expected UTF-8"):
        read_runs([tmp_path / "text"])
    (tmp_path / "text" / "config.json").write_text('{"algorithm": "histofl"}')
    with pytest.raises(RunsError, match=r"text.config\.json: no configuration of FedAD"):
        read_runs([tmp_path / "text"])


def test_a_run_alone_is_not_called_by_its_seed(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "fedad" / "west" / "0", {}, 0)
    assert [group.label for group in grouped(read_runs([tmp_path]))] == ["runs/fedad/west"]
    assert [group.label for group in grouped(read_runs([tmp_path / "runs" / "fedad"]))] == ["west"]


def test_training_with_labels_is_not_the_papers_method(tmp_path: Path) -> None:
    write_run(tmp_path / "supervised" / "0", {}, 0)
    records = tmp_path / "supervised" / "0" / "rounds.jsonl"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    for line in lines:
        line["losses"] = {site: {"total": 1.0} for site in line["losses"]}
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn = draw_all(read_runs([tmp_path]), [], tmp_path / "out")
    of_fedad = {"08_loss_components", "10_phases", "11_alignment_weight"}
    assert {drawn.missing[name] for name in of_fedad} == {"no finished round of method fedad"}
    assert "09_instability" in drawn.files


def test_targets_and_protocols_are_chosen(bench: Path, tmp_path: Path) -> None:
    row = read_rows([bench])[0]
    elsewhere = [row.model_copy(update={"target": target, "method": "other"}) for target in ("west", "east")]
    few_shot = row.model_copy(update={"protocol": "few-shot/1"})
    results = Results.load(bench / "results.json")
    write_run(tmp_path / "runs" / "untested", {}, 0, evaluated=False)
    write_run(tmp_path / "runs" / "west", {"method": "moon"}, 0)
    rows = [*results.rows, *elsewhere, few_shot]
    Results(facts=results.facts, rows=rows).write(tmp_path / "results.json")

    def drawn(*options: str) -> Path:
        out = tmp_path / "out" / "-".join(options)
        result = CliRunner().invoke(app, ["figures", str(tmp_path), "--out", str(out), *options])
        assert result.exit_code == 0, result.output
        return out

    east = drawn("--target", "east")
    assert {row["method"] for row in read(east / "13_method_bars.csv")} == {"other"}
    assert {row["run"] for row in read(east / "07_convergence.csv")} == {"untested"}
    assert not (east / "15_roc.csv").exists()
    shown = read(drawn("--target", "west", "--protocol", "few-shot/1") / "13_method_bars.csv")
    assert [(row["protocol"], row["method"], row["seed"]) for row in shown] == [("few-shot/1", "fedad", "0")]
    west = drawn("--target", "west", "--target", "east", "--protocol", "source")
    assert len(read(west / "13_method_bars.csv")) == len(rows) - 1
    assert {row["run"] for row in read(west / "15_roc.csv")} == {"west"}
    refused = CliRunner().invoke(app, ["figures", str(tmp_path), "--out", str(tmp_path), "--target", "north"])
    assert refused.exit_code == 1
    assert "target 'north': nothing was tested so; expected one of west, east" in " ".join(refused.output.split())


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunsError, match=r"no rounds\.jsonl"):
        read_runs([tmp_path])
    write_run(tmp_path / "run", {}, 0)
    (tmp_path / "run" / "evaluation.json").write_text("{}")
    with pytest.raises(RunsError, match="fedad probe --json"):
        read_runs([tmp_path])
    (tmp_path / "run" / "config.json").unlink()
    refused = CliRunner().invoke(app, ["figures", str(tmp_path), "--out", str(tmp_path / "out")])
    assert refused.exit_code == 1
    assert "no config.json beside rounds.jsonl" in refused.output


def test_labels_keep_their_order_and_distance() -> None:
    assert spread([10.0, 50.0, 90.0], [10, 10, 10], 100) == [10, 50, 90]
    crowded = spread([49.0, 50.0, 50.0, 51.0], [10, 30, 10, 10], 100)
    assert (np.diff(crowded) >= np.array([20, 20, 10]) - 1e-9).all()
    low, high = spread([0.0, 0.0], [10, 10], 100), spread([100.0, 100.0], [10, 20], 100)
    assert min(low) >= 5
    assert high[-1] <= 90
    assert not any(math.isnan(place) for place in crowded)


def test_a_long_label_is_broken_and_nothing_of_it_is_lost() -> None:
    name = "fedad@" + "+".join(f"loss.setting_{number}=true" for number in range(8)) + "+stain_jitter"
    broken = wrapped(name)
    assert broken.replace("\n", "") == name
    assert max(map(len, broken.splitlines())) <= 36
    assert text_height(name) == text_height("moon") * len(broken.splitlines())
    assert wrapped("fedavg_ssl") == "fedavg_ssl"


def test_a_picture_grows_until_all_its_names_fit() -> None:
    figure = Figure(figsize=(8.4, 3.0), layout="constrained")
    panel = figure.subplots()
    panel.plot([0, 1], [0, 1])
    named_lines(figure, panel, {f"method {number}": (number, 1.0, number / 40) for number in range(40)})
    needed = 40 * text_height("method")
    assert panel.get_window_extent().height * 72 / figure.dpi >= 0.97 * needed
    places = [text.xyann[1] for text in panel.texts if isinstance(text, Annotation)]
    assert 0 < min(places) < max(places) <= 1


def test_the_legend_of_many_curves_is_not_cut(tmp_path: Path) -> None:
    for place in range(20):
        settings = {"loss": {"gamma": place / 10}, "atsa": {"schedule": "fixed", "lambda_fixed": 0.1}}
        write_run(tmp_path / f"a_row_with_quite_a_long_name+that_is_number_{place}+stain_jitter", settings, 0)
    with rc_context(STYLE):
        _, figure = FIGURES["15_roc"](Material(grouped(read_runs([tmp_path])), []))
        figure.draw_without_rendering()
    (panel,) = figure.axes
    legend = panel.get_legend()
    assert legend is not None
    shown = legend.get_window_extent()
    assert shown.y0 >= 0
    assert shown.y1 <= figure.bbox.height
    assert len(legend.get_texts()) == 20


def test_a_row_without_the_loss_has_no_empty_panel(tmp_path: Path) -> None:
    write_run(tmp_path / "fedad", {}, 0)
    write_run(tmp_path / "supervised", {"method": "fedavg_ssl"}, 0)
    rounds = tmp_path / "supervised" / "rounds.jsonl"
    records = [json.loads(line) for line in rounds.read_text().splitlines()]
    for record in records:
        for losses in record["losses"].values():
            losses["contrastive"] = None
    rounds.write_text("".join(json.dumps(record) + "\n" for record in records))
    table, figure = FIGURES["12_site_losses"](Material(grouped(read_runs([tmp_path])), []))
    assert {row["run"] for row in table} == {"fedad"}
    assert len(figure.axes) == 1
