from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from pages import Page
from PIL import Image

from fedad_components.mil.counts import Grid
from fedad_components.mil.evaluate_classes import ClassCounts, Classified
from fedad_components.mil.evaluate_survival import SurvivalCounts, Survived, risk_cuts, risk_groups
from fedad_components.mil.federated_metrics import RiskSetTable, RiskTimeHistogram, class_histograms
from fedad_components.mil.report import Report, SlideView, render, write_report

EVIL = '<script>alert("x")</script> $\\frac{ $'


def png(colour: int) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (3000, 300), (colour, 0, 0)).save(content, "PNG")
    return content.getvalue()


def runs(method: str = "federated") -> tuple[list[Classified], list[Survived]]:
    classified, survived = [], []
    for seed in range(2):
        for site, n in (("north", 30), ("south", 20)):
            generator = np.random.default_rng([seed, n])
            true = generator.integers(0, 2, n)
            chance = np.clip(0.3 * true + 0.7 * generator.random(n), 0, 1)
            classified.append(Classified(method, site, seed, true, np.stack([1 - chance, chance], axis=1)))
            times, risks = np.ceil(generator.exponential(30, n)), -4 * generator.random(n)
            survived.append(Survived(method, site, seed, times, true > 0, risks, (-2.0,)))
    return classified, survived


def counts(classified: list[Classified], survived: list[Survived]) -> tuple[list[ClassCounts], list[SurvivalCounts]]:
    times, risks = Grid(0.0, 256.0, 5), Grid(-4.0, 0.0, 5)
    return (
        [
            ClassCounts(
                "counted", run.site, run.seed, run.confusion, tuple(class_histograms(run.true, run.probability))
            )
            for run in classified
        ],
        [
            SurvivalCounts(
                "counted",
                run.site,
                run.seed,
                RiskTimeHistogram.of(run.times, run.events, run.risks, risks, times),
                RiskSetTable.of(run.times, run.events, risk_groups(run.risks, run.cuts), 2, times),
                "cut at -2, fixed on training patients",
            )
            for run in survived
        ],
    )


@pytest.fixture(scope="module")
def html() -> str:
    classified, survived = runs()
    class_counts, survival_counts = counts(classified, survived)
    return render(
        Report(
            EVIL,
            {EVIL: EVIL},
            [EVIL],
            ("normal", EVIL),
            [*classified, *class_counts],
            [*survived, *survival_counts],
            "months",
            [SlideView("0f2d94c1a7b35e68", EVIL, 77, png(200), png(100))],
        )
    )


def test_it_is_one_page_that_refers_to_nothing_outside(html: str) -> None:
    page = Page(html)
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'; img-src data:") in page.attributes
    assert not [tag for tag, name, _ in page.attributes if name in ("href", "srcset", "action") or tag == "script"]
    assert page.images
    assert all(re.fullmatch(r"data:image/(svg\+xml|jpeg);base64,[A-Za-z0-9+/=]+", image) for image in page.images)
    assert not re.search(r"https?:|url\(|@import", re.sub(r"data:image/[^\"]*", "", html))
    for image in page.images:
        kind, content = image.split(";base64,")
        if kind == "data:image/svg+xml":
            for element in ElementTree.fromstring(base64.b64decode(content)).iter():
                for name, value in element.attrib.items():
                    assert not name.endswith("href") or value.startswith(("#", "data:"))
        else:
            assert max(Image.open(io.BytesIO(base64.b64decode(content))).size) <= 1400


def test_text_from_elsewhere_is_escaped(html: str) -> None:
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 5


def test_the_same_report_gives_the_same_bytes(tmp_path: Path) -> None:
    classified, survived = runs()
    report = Report("HistoFL", classes=("normal", "tumour"), classified=classified, survived=survived)
    write_report(report, tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == render(report)


def test_sites_all_sites_and_what_is_binned(html: str) -> None:
    rows = Page(html).rows
    names = [row[:2] for row in rows]
    assert names.count(["federated", "north"]) == names.count(["counted", "north from counts"]) == 2
    (classification,) = [row for row in rows if row[:2] == ["federated", "all sites"] and len(row) == 8]
    assert classification[2:4] == ["2", "50"]
    assert all(re.fullmatch(r"-?[01]\.\d{3} ± 0\.\d{3}", cell) for cell in classification[4:])
    tests = [row for row in rows if len(row) == 5 and row[0] in "01"]
    assert len(tests) == 4
    assert all(int(low) + int(high) == 50 for _, low, high, *_ in tests)
    text = Page(html).text
    assert "cut at a predicted risk of -2.000, fixed on training patients" in text
    assert "seed 0" in text


def test_one_seed_has_no_deviation_and_one_site_no_total() -> None:
    classified, survived = runs()
    page = Page(render(Report("HistoFL", classes=("a", "b"), classified=classified[:1], survived=survived[:1])))
    assert "±" not in page.text
    assert [row[1] for row in page.rows if row[0] == "federated"] == ["north", "north"]


def test_what_is_not_there_is_left_out() -> None:
    page = Page(render(Report("Nothing")))
    assert page.images == []
    assert page.rows == []


def test_groups_without_patients_or_events_are_drawn_without_a_test() -> None:
    times, events = np.array([3.0, 5.0, 9.0]), np.array([True, False, True])
    run = Survived("central", "north", 0, times, events, np.array([-3.0, -2.9, -2.8]), (-2.0, -1.0))
    censored = Survived("single", "north", 0, times, ~events & events, np.array([-3.0, -1.0, -2.0]), (-2.0, -1.5))
    rows = Page(render(Report("Edge", survived=[run, censored]))).rows
    assert ["0", "3", "0", "0", "–", "–"] in rows
    assert ["single", "north", "1", "3", "–"] in rows


def test_three_groups_cut_on_training_risks() -> None:
    training = -4 * np.random.default_rng(1).random(90)
    (_, survived) = runs()
    cuts = risk_cuts(training, 3)
    cut = [Survived("central", run.site, run.seed, run.times, run.events, run.risks, cuts) for run in survived]
    page = Page(render(Report("Three", survived=cut, unit="days")))
    assert "medium risk, n" in page.text
