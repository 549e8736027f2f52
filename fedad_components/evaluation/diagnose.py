"""Is z_s free of the site, and does z_d hold it? Arrays in, a typed result out; docs/diagnostics.md explains it.

Sites have heads of their own, and a linear probe tells two random heads apart whatever the images are. What is compared
between sites therefore goes, for every site's images, through one head; this is done with each head, and averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from fedad_components.evaluation import disentanglement as sphere
from fedad_components.evaluation.disentanglement import PairedCosine
from fedad_components.evaluation.images import LabelledFeatures, unit_numbers
from fedad_components.evaluation.mutual_information import FEWEST, MutualInformation, mutual_information
from fedad_components.evaluation.predictability import balanced_accuracy, chance_deviation, explained
from fedad_components.evaluation.site_vectors import RANDOM_HEAD, Floats, Halves, SiteVectors
from fedad_components.fedsd.style import EPS

DEAD_SHARE = 0.5
"""Share of z_d without a direction above which nothing is computed from z_d."""
FEWEST_IMAGES = 10
"""Of a site: below, no fold has two."""

Vectors = npt.NDArray[np.float64]
Pooled = dict[str, list[Vectors]]
Rows = npt.NDArray[np.intp]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class DiagnoseError(ValueError):
    """Vectors that cannot be diagnosed; the message names the site and what was expected."""


class _Result(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OverHeads(_Result):
    """One number for each head that is applied to all sites; h has no head, and there all three are equal."""

    mean: float
    low: float
    high: float


class Predictability(_Result):
    """Balanced accuracy of a linear probe, out of fold."""

    what: str
    classes: list[str]
    images: int
    chance: Share = Field(description="of uniform guesses, 1 / classes")
    chance_deviation: float = Field(description="standard deviation of chance at this number of images")
    h: OverHeads
    z_s: OverHeads
    z_d: OverHeads | None = Field(description="None where z_d is dead")
    confounder: Share | None = Field(
        description="the same from the class alone, for the site, or from the site alone, for the class: sites differ "
        "in their mix of classes, and this much needs no image"
    )
    own_heads: dict[str, float] = Field(
        description="z_s and z_d, each image by its own site's head: it tells the heads apart, and no probe that pools "
        "sites may be judged by it; empty where all share one head"
    )


class Leakage(_Result):
    """Share of the variance of what was to be reconstructed, R^2 of ridge regression out of fold; 0: nothing."""

    style: OverHeads = Field(description="of fedsd/style.py's 20 statistics")
    thumbnail: OverHeads = Field(description="of a 16 x 16 RGB thumbnail")


class SiteDiagnosis(_Result):
    """One site's images through its own head."""

    site: str
    images: int
    head: str
    dead_z_d: Share = Field(description="share of z_d without a direction; above 0.5 no number of z_d means anything")
    pairwise_z_s: float = Field(description="mean cos(z_s, z_s') of two images; 1: all in one direction")
    pairwise_z_d: float | None
    pairwise_z_g: float
    z_s_z_d: PairedCosine | None = Field(description="what Eq. 4 makes small")
    z_s_z_g: PairedCosine = Field(description="what Eq. 3 makes large")
    z_d_z_g: PairedCosine | None = Field(description="what Eq. 3 makes small")
    mutual_information: MutualInformation | None = Field(
        description="of z_s and z_d, by MINE; None where z_d is dead or there are fewer than 60 images"
    )
    alignment: float = Field(description="E |z_s^a - z_s^b|^2 of an image's two views; 0 is best")
    alignment_null: float = Field(description="the same of two images")
    uniformity: float = Field(description="ln E exp(-2 |z_s - z_s'|^2); low is best, 0: all the same")
    uniformity_floor: float = Field(description="of the uniform distribution on the sphere")


class Diagnosis(_Result):
    """Of an extractor and its sites' heads."""

    sites: list[SiteDiagnosis]
    heads: list[str] = Field(description="each is applied to all sites")
    site: Predictability | None = Field(description="None where there is one site")
    label: Predictability | None = Field(description="None where fewer than two classes are labelled")
    leakage: dict[str, Leakage] = Field(description="from h, z_s and, unless it is dead, z_d")
    notes: list[str] = Field(description="what a reader must know to judge the numbers")


def diagnose(sites: Sequence[SiteVectors], seed: int = 0, mine: bool = True) -> Diagnosis:
    """Diagnose an extractor by what it makes of several sites' images, or of one site's.

    Args:
        sites: of different names, with the same heads, at least ten images each.
        seed: draws the folds, and MINE's parts, weights and batches.
        mine: False leaves out the mutual information, which takes most of the time.

    Raises:
        DiagnoseError: naming the site, if these do not fit together, or a vector is not finite.
        ProbeError: if all images are of one patient, so that no fold can be tested on another.
    """
    _check(sites)
    pooled = _pooled(sites)
    names = [vectors.site for vectors in sites for _ in range(len(vectors))]
    labels = [label for vectors in sites for label in vectors.labels]
    units = unit_numbers([_patient(vectors.site, patient) for vectors in sites for patient in vectors.patients])
    notes = _notes(sites)

    site = label = None
    if len(sites) > 1:
        site = _predictability("site", pooled, names, units, labels, seed)
        if len(sites[0].halves) > 1:
            own_heads = {
                name: balanced_accuracy(LabelledFeatures("site", x, names, units), seed)
                for name, x in _by_own_heads(sites).items()
            }
            site = site.model_copy(update={"own_heads": own_heads})
    rows = np.flatnonzero([label is not None for label in labels])
    known = [str(labels[row]) for row in rows]
    if len(set(known)) > 1:
        if one_patient := [name for name in sorted(set(known)) if _patients_of(name, labels, units) == 1]:
            notes.append(
                f"class {', '.join(one_patient)}: of one patient only, and no probe can learn it from another: it "
                f"counts as never recognised"
            )
        of_labelled = {name: [x[rows] for x in arrays] for name, arrays in pooled.items()}
        label = _predictability("class", of_labelled, known, units[rows], [names[row] for row in rows], seed)
    return Diagnosis(
        sites=[_of_site(vectors, seed, mine) for vectors in sites],
        heads=list(sites[0].halves),
        site=site,
        label=label,
        leakage=_leakage(pooled, sites, names, units, seed),
        notes=notes,
    )


def _check(sites: Sequence[SiteVectors]) -> None:
    if not sites:
        raise DiagnoseError("no sites: expected at least one")
    names = [vectors.site for vectors in sites]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DiagnoseError(f"site {twice[0]}: given twice: expected each site once")
    for vectors in sites:
        if len(vectors) < FEWEST_IMAGES:
            raise DiagnoseError(
                f"site {vectors.site}: {len(vectors)} images: expected at least {FEWEST_IMAGES} to take folds from"
            )
        if vectors.halves.keys() != sites[0].halves.keys() or vectors.own not in vectors.halves:
            raise DiagnoseError(
                f"site {vectors.site}: heads {', '.join(vectors.halves)}: expected the same as of site "
                f"{sites[0].site}, {', '.join(sites[0].halves)}, and the site's own ({vectors.own}) among them"
            )
        arrays = [vectors.h, vectors.z_g, vectors.views]
        arrays += [z for halves in vectors.halves.values() for z in (halves.z_s, halves.z_d)]
        if not all(np.isfinite(array).all() for array in arrays):
            raise DiagnoseError(f"site {vectors.site}: vectors that are not finite; was the extractor trained to NaN?")


def _pooled(sites: Sequence[SiteVectors]) -> Pooled:
    """h, z_s and z_d of all sites' images: for each head, a ``(n, D)`` array; heads whose z_d is dead give none."""

    def of_heads(half: Callable[[Halves], Floats]) -> list[Vectors]:
        return [_joined([half(vectors.halves[name]) for vectors in sites]) for name in sites[0].halves]

    return {
        "h": [_joined([vectors.h for vectors in sites])],
        "z_s": of_heads(lambda halves: halves.z_s),
        "z_d": [z_d for z_d in of_heads(lambda halves: halves.z_d) if not _is_dead(z_d)],
    }


def _joined(arrays: Sequence[Floats]) -> Vectors:
    return np.concatenate(arrays).astype(np.float64)


def _is_dead(z_d: npt.NDArray) -> bool:
    return bool(sphere.dead(z_d).mean() > DEAD_SHARE)


def _patient(site: str, patient: str | None) -> str | None:
    """The same pseudonym at two sites is two patients."""
    return None if patient is None else f"{site}\x1f{patient}"


def _patients_of(label: str, labels: Sequence[str | None], units: Rows) -> int:
    return len(set(units[[value == label for value in labels]]))


def _predictability(
    what: str, pooled: Pooled, classes: list[str], units: Rows, confounder: Sequence[str | None], seed: int
) -> Predictability:
    def probe(x: npt.NDArray) -> float:
        return balanced_accuracy(LabelledFeatures(what, x, classes, units), seed)

    others = list(map(str, confounder))
    one_hot = np.array([[value == other for other in sorted(set(others))] for value in others], dtype=np.float64)
    return Predictability(
        what=what,
        classes=sorted(set(classes)),
        images=len(classes),
        chance=1 / len(set(classes)),
        chance_deviation=chance_deviation(classes),
        confounder=probe(one_hot) if one_hot.shape[1] > 1 else None,
        own_heads={},
        **{name: _over_heads([probe(x) for x in arrays]) for name, arrays in pooled.items()},
    )


def _by_own_heads(sites: Sequence[SiteVectors]) -> dict[str, Vectors]:
    """z_s and, unless it is dead, z_d, each image's by its own site's head."""
    own = [vectors.halves[vectors.own] for vectors in sites]
    z_s, z_d = _joined([halves.z_s for halves in own]), _joined([halves.z_d for halves in own])
    return {"z_s": z_s} | ({} if _is_dead(z_d) else {"z_d": z_d})


def _leakage(
    pooled: Pooled, sites: Sequence[SiteVectors], names: list[str], units: Rows, seed: int
) -> dict[str, Leakage]:
    style = np.concatenate([vectors.style for vectors in sites])
    style = (style - style.mean(axis=0)) / (style.std(axis=0) + EPS)  # so that each statistic counts alike
    targets = style, np.concatenate([vectors.thumbnails for vectors in sites])
    leakage = {}
    for name, arrays in pooled.items():
        shares = [explained(LabelledFeatures("images", x, names, units), targets, seed) for x in arrays]
        if shares:
            of_style, of_thumbnail = map(_over_heads, map(list, zip(*shares, strict=True)))
            leakage[name] = Leakage(style=of_style, thumbnail=of_thumbnail)
    return leakage


def _over_heads(values: list[float]) -> OverHeads | None:
    """None where no head is left."""
    return OverHeads(mean=float(np.mean(values)), low=min(values), high=max(values)) if values else None


def _of_site(vectors: SiteVectors, seed: int, mine: bool) -> SiteDiagnosis:
    own = vectors.halves[vectors.own]
    has_direction = ~sphere.dead(own.z_d)
    is_dead = _is_dead(own.z_d)
    z_d, z_s_beside, z_g_beside = own.z_d[has_direction], own.z_s[has_direction], vectors.z_g[has_direction]
    return SiteDiagnosis(
        site=vectors.site,
        images=len(vectors),
        head=vectors.own,
        dead_z_d=float(1 - has_direction.mean()),
        pairwise_z_s=sphere.mean_pairwise_cosine(own.z_s),
        pairwise_z_d=None if is_dead else sphere.mean_pairwise_cosine(z_d),
        pairwise_z_g=sphere.mean_pairwise_cosine(vectors.z_g),
        z_s_z_d=None if is_dead else sphere.paired_cosine(z_s_beside, z_d),
        z_s_z_g=sphere.paired_cosine(own.z_s, vectors.z_g),
        z_d_z_g=None if is_dead else sphere.paired_cosine(z_d, z_g_beside),
        mutual_information=mutual_information(z_s_beside, z_d, seed)
        if mine and not is_dead and len(z_d) >= FEWEST
        else None,
        alignment=sphere.alignment(*vectors.views),
        alignment_null=2 - 2 * sphere.paired_cosine(*vectors.views).shuffled,
        uniformity=sphere.uniformity(own.z_s),
        uniformity_floor=sphere.uniformity_of_the_sphere(own.z_s.shape[1]),
    )


def _notes(sites: Sequence[SiteVectors]) -> list[str]:
    notes = []
    if without := [vectors.site for vectors in sites if vectors.own == RANDOM_HEAD]:
        notes.append(
            f"{', '.join(without)}: no head was given, so z_s and z_d are those of one random, untrained head: they "
            f"say nothing about the method's disentanglement"
        )
    if len(sites) == 1:
        notes.append("one site: whether vectors tell the site cannot be asked")
    for vectors in sites:
        if share := sphere.dead(vectors.halves[vectors.own].z_d).mean():
            notes.append(
                f"{vectors.site}: {share:.0%} of z_d have no direction (length below 1e-6)"
                + (": nothing is computed from its z_d" if share > DEAD_SHARE else "; they are left out of its cosines")
            )
    if unknown := sum(patient is None for vectors in sites for patient in vectors.patients):
        notes.append(
            f"{unknown} of {sum(map(len, sites))} images are of an unknown patient: two of one patient may fall on "
            f"both sides of a fold, which flatters every probe"
        )
    return notes
