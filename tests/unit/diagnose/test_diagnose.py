"""The whole diagnosis on vectors whose answer is known by construction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedad_components.evaluation.diagnose import DiagnoseError, Diagnosis, diagnose
from fedad_components.evaluation.diagnose_figure import write_figure
from fedad_components.evaluation.site_vectors import Halves, SiteVectors

N = 60
CLASSES = ("basophil", "monocyte")


def vectors(site: str, number: int, heads: tuple[str, ...] = ("one",), own: str = "one") -> SiteVectors:
    """z_s tells the class and nothing of the site, z_d the site and nothing of the class; style is a part of z_d."""
    generator = np.random.default_rng(number)
    labels = [CLASSES[index % 2] for index in range(N)]
    kind = np.array([[label == CLASSES[0]] for label in labels]) * np.array([[4.0, 0, 0, 0]])
    place = 4 * np.eye(4)[number] + generator.normal(size=(N, 4))
    content = kind + generator.normal(size=(N, 4))
    halves = {
        head: Halves((content @ turn(head)).astype(np.float32), (place @ turn(head)).astype(np.float32))
        for head in heads
    }
    z_s = halves[own].z_s
    return SiteVectors(
        site=site,
        own=own,
        h=np.hstack([content, place]).astype(np.float32),
        z_g=content.astype(np.float32),
        halves=halves,
        views=np.stack([z_s, z_s]),
        style=place.astype(np.float32),
        thumbnails=generator.normal(size=(N, 6)).astype(np.float32),
        labels=labels,
        patients=[f"p{index}" for index in range(N)],
    )


def turn(head: str) -> np.ndarray:
    """A head is a rotation here: z's of two heads cannot be compared, and each tells the same."""
    if head == "one":
        return np.eye(4)
    q, _ = np.linalg.qr(np.random.default_rng([ord(letter) for letter in head]).normal(size=(4, 4)))
    return q


def test_a_disentangled_pair_is_recognised() -> None:
    got = diagnose([vectors("a", 0), vectors("b", 1), vectors("c", 2)], mine=False)
    assert got.site is not None
    assert got.label is not None
    assert got.site.chance == pytest.approx(1 / 3)
    assert abs(got.site.z_s.mean - got.site.chance) < 4 * got.site.chance_deviation
    assert got.site.z_d is not None
    assert got.site.z_d.mean > 0.95
    assert got.label.z_s.mean > 0.95
    assert got.label.z_d is not None
    assert abs(got.label.z_d.mean - 0.5) < 4 * got.label.chance_deviation
    assert got.label.confounder is not None
    assert got.label.confounder < 0.6, "all sites have the same mix of classes"
    assert got.leakage["z_d"].style.mean > 0.95
    assert got.leakage["z_s"].style.mean < 0.1
    assert max(leak.thumbnail.mean for leak in got.leakage.values()) < 0.1
    assert got.site.own_heads == {}
    assert got.notes == []
    assert Diagnosis.model_validate_json(got.model_dump_json()) == got


def test_a_probe_over_own_heads_tells_the_heads_apart() -> None:
    """The same images at both sites: no vector can tell the site but by its head."""
    own = {"a": "first", "b": "second"}
    sites = [replace(vectors("a", 0, tuple(own.values()), head), site=name) for name, head in own.items()]
    got = diagnose(sites, mine=False)
    assert got.site is not None
    assert got.heads == ["first", "second"]
    assert got.site.z_s.high < 0.6
    assert got.site.own_heads["z_d"] > 0.9


def test_one_site_with_its_own_head() -> None:
    got = diagnose([vectors("a", 0)])
    assert got.site is None
    assert any(note.startswith("one site") for note in got.notes)
    (site,) = got.sites
    assert site.mutual_information is not None
    assert site.mutual_information.nats < 0.6, "independent halves, twelve held-out pairs"
    assert site.alignment == 0
    assert site.alignment_null == pytest.approx(2 - 2 * site.pairwise_z_s, abs=1e-6)


def test_dead_z_d_gives_no_number() -> None:
    alive = vectors("a", 0)
    dead = replace(alive, halves={"one": Halves(alive.halves["one"].z_s, 1e-7 * alive.halves["one"].z_d)})
    got = diagnose([dead, replace(dead, site="b")])
    assert got.site is not None
    assert got.site.z_d is None
    assert "z_d" not in got.leakage
    for site in got.sites:
        assert site.dead_z_d == 1
        assert (site.pairwise_z_d, site.z_s_z_d, site.z_d_z_g, site.mutual_information) == (None, None, None, None)
    assert "a: 100% of z_d have no direction (length below 1e-6): nothing is computed from its z_d" in got.notes


def test_the_confounder_is_what_the_mix_of_classes_tells() -> None:
    a, b = vectors("a", 0), vectors("b", 1)
    got = diagnose([replace(a, labels=["basophil"] * N), replace(b, labels=["monocyte"] * N)], mine=False)
    assert got.site is not None
    assert got.site.confounder == 1


def test_what_rests_on_too_little_is_said() -> None:
    one_patient = ["p"] * (N // 2) + [f"p{index}" for index in range(N // 2)]
    labels = ["rare"] * (N // 2) + ["basophil", "monocyte"] * (N // 4)
    site = replace(vectors("a", 0), own="random", labels=labels, patients=one_patient)
    site = replace(site, halves={"random": site.halves["one"]})
    notes = "\n".join(diagnose([site], mine=False).notes)
    assert "class rare: of one patient only" in notes
    assert "a: no head was given" in notes
    unknown = diagnose([replace(vectors("a", 0), patients=[None] * N)], mine=False)
    assert any(note.startswith(f"{N} of {N} images are of an unknown patient") for note in unknown.notes)


def nan(site: SiteVectors) -> SiteVectors:
    return replace(site, h=site.h * np.float32("nan"))


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        ([], "no sites"),
        ([vectors("a", 0), vectors("a", 1)], "site a: given twice"),
        ([vectors("a", 0), vectors("b", 1, ("two",), "two")], "site b: heads two: expected the same"),
        ([nan(vectors("a", 0))], "site a: vectors that are not finite"),
        ([replace(vectors("a", 0), h=np.zeros((3, 8), np.float32))], "site a: 3 images: expected at least 10"),
    ],
)
def test_what_does_not_fit_is_named(sites: list[SiteVectors], message: str) -> None:
    with pytest.raises(DiagnoseError, match=message):
        diagnose(sites)


def test_the_figure_shows_chance(tmp_path: Path) -> None:
    write_figure(diagnose([vectors("a", 0), vectors("b", 1)], mine=False), tmp_path / "bars.svg")
    drawn = (tmp_path / "bars.svg").read_text(encoding="utf-8")
    for text in ("Site (2, 120 images)", "Class (2, 120 images)", "chance, 0.50", "from the site alone"):
        assert f"<!-- {text}" in drawn
    unlabelled = replace(vectors("a", 0), labels=[None] * N)
    with pytest.raises(DiagnoseError, match="nothing to plot"):
        write_figure(diagnose([unlabelled], mine=False), tmp_path / "none.svg")
