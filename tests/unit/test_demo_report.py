from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from test_summary import CONFIG, DATA, private_summary, round_record, some_probe, summary

from fedad_components.config import FedADConfig
from fedad_components.demo.data import DemoData, Unseen
from fedad_components.demo.report import duration, render, score, size, write_report

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Collects text and attributes, and checks that every element is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.images: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "data", "action"):
                (self.images if tag == "img" else self.addresses).append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


def plots(page: Page) -> list[ElementTree.Element]:
    prefix = "data:image/svg+xml;base64,"
    assert all(image.startswith(prefix) for image in page.images)
    return [ElementTree.fromstring(base64.b64decode(image[len(prefix) :])) for image in page.images]


SUMMARY = summary()


@pytest.fixture(scope="module")
def html() -> str:
    return render(SUMMARY)


def test_one_file_with_the_same_bytes_for_the_same_summary(html: str, tmp_path: Path) -> None:
    write_report(SUMMARY, tmp_path / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_bytes() == html.encode("utf-8")


def test_nothing_outside_is_referred_to(html: str) -> None:
    page = Page(html)
    assert page.addresses == []
    assert "script" not in page.tags
    assert "link" not in page.tags
    without_plots = re.sub(r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]+", "", html)
    assert not re.search(r"https?:|url\(|@import", without_plots)
    for plot in plots(page):
        for element in plot.iter():  # a plot may refer to a part of itself only
            for name, value in element.attrib.items():
                assert not name.endswith("href") or value.startswith(("#", "data:")), (
                    "a plot refers to something outside itself"
                )


def test_it_shows_what_happened(html: str) -> None:
    page = Page(html)
    assert len(plots(page)) == 4
    text = " ".join(page.text.split())
    for expected in (
        "FINISHED:COMPLETED",
        "3 of 3",
        "1 min 02 s",
        "8.0 kB",
        "dab_above_median",
        "A stain.",
        "majority class",
        "No differential privacy.",
        "It is no evidence of clinical value",
        CONFIG.digest(),
        "job-1",
    ):
        assert expected in text, expected
    assert "not complete" not in text


def test_an_incomplete_run_says_so() -> None:
    text = Page(render(summary([], status="FINISHED:ABORTED", job_id=None, probe=None))).text
    assert "This run is not complete" in text
    assert "No round finished" in text
    assert "No model was probed" in text
    assert "the whole path works" not in text


def test_text_from_elsewhere_is_escaped() -> None:
    evil = '<script>alert("x")</script>'
    data = DemoData("embedded", DATA.sites, Unseen(evil, evil, evil, DATA.unseen.train, DATA.unseen.test))
    probe = some_probe().model_copy(update={"label": evil, "classes": [evil, "$\\frac{"]})
    record = round_record(0, ("north",), refused={"south": evil}, bytes={})
    html = render(summary([record], status=evil, job_id=evil, data=data, probe=probe, notes=[evil]))
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 6
    assert "script" not in Page(html).tags


@pytest.mark.parametrize(
    ("rounds", "changes"),
    [(1, {}), (40, {"atsa": {"schedule": "fixed"}}), (2, {"atsa": {"instability_scale": "relative"}})],
)
def test_any_length_and_schedule(rounds: int, changes: dict[str, Any]) -> None:
    config = FedADConfig.parse({**changes, "federation": {"rounds": rounds}})
    lost = {"total": None, "contrastive": None, "alignment": 0.1, "orthogonality": 0.1}
    records = [round_record(number) for number in range(rounds - 1)]
    records.append(round_record(rounds - 1, ("north",), losses={"north": lost}))
    assert len(plots(Page(render(summary(records, config=config))))) == 4


def test_numbers_for_people() -> None:
    assert [size(count) for count in (0, 999, 1000, 44_728_832, 6_709_324_800)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "44.7 MB",
        "6.7 GB",
    ]
    assert size(999_999) == "1.0 MB"
    assert [duration(seconds) for seconds in (0.24, 59.7, 61.5, 3600, 7325)] == [
        "0.2 s",
        "59.7 s",
        "1 min 02 s",
        "1 h 00 min",
        "2 h 02 min",
    ]
    assert score(None) == "–"
    assert score(0.12345) == "0.123"


def test_a_private_run_shows_every_epsilon_with_what_it_is_about() -> None:
    page = Page(render(private_summary()))
    text = " ".join(page.text.split())
    for expected in (
        "Privacy: dp_sgd",
        "adding or removing all images of one bundle",
        "ε, adding or removing one unit",
        "5.25",
        "9.75",
        "PRV accountant",
        "1e-05",
        "policy-refused: min_noise_multiplier",
        "so there is no ε to state: east",
        "not told",
    ):
        assert expected in text, expected
    assert "Each line is one hospital" not in text  # no losses left the sites
    assert len(plots(page)) == 3
