"""What a site's bags are, before a job asks for them: ``fedad data check``. Counts only; no name, no pseudonym."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedad_components.files import sha256_of
from fedad_components.imaging.catalogue import CatalogueError, DataSet
from fedad_components.mil.config import HistoFLConfig
from fedad_components.mil.site_bags import FeaturesError, SiteBags, features_of, open_bags
from fedad_components.mil.splits import SplitError
from fedad_components.mil.trainer import split_of
from fedad_components.slides.bags import read_index
from fedad_components.slides.reader import SlidesError

MOST_LABELS = 16
"""Classes are few: of more different labels, only their number is told."""
FEWEST_PATIENTS = 3
"""For a part to train on, one to validate, one to test."""
MISSING, CHANGED, UNUSABLE = "missing", "changed", "unusable"
MEANING = {
    MISSING: "its file of features is not there: prepare again",
    CHANGED: "its file is not the one that was written: prepare again",
    UNUSABLE: "its features cannot be read, are none, or not finite: prepare again",
}


@dataclass(frozen=True)
class BagAccount:
    """A prepared folder in numbers.

    Attributes:
        slides: listed.
        patches: of the slides that can be read.
        patients: a slide without one counts as a patient of its own.
        without_patient: slides.
        labels: patients of each class, the most frequent first.
        events: patients with an event, and censored ones.
        no_outcome: patients that have neither class nor time.
        conflicts: patients whose slides have different outcomes.
        lengths: slides for each length of their features.
        encoder: whose features they are, as :meth:`~fedad_components.slides.encoder.Encoder.to_json` says; None:
            nobody knows.
        bad: slides by what is wrong with their file: :data:`MEANING`.
        refused: why the site cannot train on it; empty where it can.
        notes: what a job may stumble over.
    """

    slides: int
    patches: int
    patients: int
    without_patient: int
    labels: Mapping[str, int]
    events: int
    censored: int
    no_outcome: int
    conflicts: int
    lengths: Mapping[int, int]
    encoder: Mapping[str, Any] | None
    bad: Mapping[str, int]
    refused: Sequence[str] = field(default=())
    notes: Sequence[str] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        labels = dict(self.labels) if len(self.labels) <= MOST_LABELS else {}
        return vars(self) | {
            "labels": labels,
            "different_labels": len(self.labels),
            "lengths": {str(length): slides for length, slides in self.lengths.items()},
            "bad": dict(self.bad),
            "refused": list(self.refused),
            "notes": list(self.notes),
        }


def account_of(
    data_set: DataSet, config: HistoFLConfig | None = None, progress: Callable[[int, int], None] | None = None
) -> BagAccount:
    """Read every file of a data set of kind bags, and count.

    Args:
        config: of a job, to say whether the site could take part in it.
        progress: called with the number of slides done and of all.

    Raises:
        CatalogueError: if the folder is not one that ``fedad slides prepare`` wrote.
    """
    try:
        index = read_index(data_set.folder)
    except SlidesError as error:
        raise CatalogueError(f"data set {data_set.id!r}: {error}") from None
    bad, lengths, patches = Counter[str](), Counter[int](), 0
    outcomes: dict[str, set[tuple[Any, ...]]] = {}
    for number, bag in enumerate(index.bags):
        owner = bag.patient if bag.patient is not None else f"\x00{bag.slide}"
        outcomes.setdefault(owner, set()).add((bag.label, bag.time, bag.event))
        file = data_set.folder / bag.file
        if not file.is_file():
            bad[MISSING] += 1
        elif sha256_of(file) != bag.sha256:
            bad[CHANGED] += 1
        else:
            try:
                shape = features_of(file).shape
                lengths[shape[1]] += 1
                patches += shape[0]
            except FeaturesError:
                bad[UNUSABLE] += 1
        if progress is not None:
            progress(number + 1, len(index.bags))
    single = [next(iter(found)) for found in outcomes.values() if len(found) == 1]
    account = BagAccount(
        slides=len(index.bags),
        patches=patches,
        patients=len(outcomes),
        without_patient=sum(bag.patient is None for bag in index.bags),
        labels=dict(Counter(label for label, _, _ in single if label is not None).most_common()),
        events=sum(event is True for _, _, event in single),
        censored=sum(event is False for _, _, event in single),
        no_outcome=sum(label is None and event is None for label, _, event in single),
        conflicts=len(outcomes) - len(single),
        lengths=dict(sorted(lengths.items())),
        encoder=index.encoder.model_dump() if index.encoder is not None else None,
        bad=dict(bad),
    )
    refused = _refused(account)
    if config is None:
        refused += _conflicts(account)
        return BagAccount(**vars(account) | {"refused": refused, "notes": _notes(account)})
    of_job, notes = _for_job(data_set, config, account)
    return BagAccount(**vars(account) | {"refused": refused + of_job, "notes": _notes(account) + notes})


def _refused(account: BagAccount) -> list[str]:
    """What no job could train on."""
    wrong = []
    if account.bad:
        wrong.append(f"{sum(account.bad.values())} of {account.slides} slides cannot be used: prepare them again")
    if len(account.lengths) > 1:
        told = ", ".join(map(str, account.lengths))
        wrong.append(f"features of {told} numbers: expected one encoder: prepare all slides with the same one")
    if account.patients < FEWEST_PATIENTS:
        wrong.append(f"{account.patients} patients: expected {FEWEST_PATIENTS} or more, for three parts of a split")
    return wrong


def _conflicts(account: BagAccount) -> list[str]:
    """A job asks for one outcome, class or survival, and says itself whether the patients have one each."""
    if not account.conflicts:
        return []
    return [
        f"{account.conflicts} patients have slides with different outcomes: expected one a patient; correct the "
        f"slides' list, and prepare again"
    ]


def _notes(account: BagAccount) -> list[str]:
    found = []
    if account.encoder is None:
        found.append("nobody knows the encoder of these features: a job that names one (model.encoder_sha256) refuses")
    elif account.encoder.get("random_weights"):
        found.append("the encoder's weights are random: these features are for a trial only")
    if account.no_outcome:
        found.append(f"{account.no_outcome} patients have neither class nor time: no job can train on them")
    return found


def _for_job(data_set: DataSet, config: HistoFLConfig, account: BagAccount) -> tuple[list[str], list[str]]:
    """Why the site would refuse the job, and what it would not tell in it."""
    wrong, width = [], config.model.in_features
    if any(length != width for length in account.lengths):
        wrong.append(f"features of {', '.join(map(str, account.lengths))} numbers, the job expects {width}")
    if config.privacy.mode == "dp_sgd":
        if data_set.units is None:
            wrong.append("the job has dp_sgd: declare `units: N`, the number of patients, in catalogue.yaml")
        elif config.privacy.units_per_step > data_set.units:
            wrong.append(
                f"the job takes privacy.units_per_step {config.privacy.units_per_step} patients a step, and "
                f"{data_set.units} are declared (`units`): ask for a smaller step, or leave the site out"
            )
        if account.without_patient:
            wrong.append(f"the job protects patients, and {account.without_patient} slides have none: name them")
    try:
        bags = open_bags(data_set, config)
        split = split_of(bags, config, "this site")
    except (CatalogueError, SplitError) as error:
        return [*wrong, str(error)], []
    notes = _silent(bags, split.validation, config)
    if config.privacy.mode != "dp_sgd":  # there, each patient's part is drawn for itself, by the site's name
        parts = " / ".join(str(len(part)) for part in split)
        notes.insert(0, f"patients to train on / validate / test under the job: {parts}")
    return wrong, notes


def _silent(bags: SiteBags, validation: frozenset[str], config: HistoFLConfig) -> list[str]:
    """Kinds of validation patients that are too few for the site to tell anything of them."""
    least = config.smallest_cell
    if least is None:
        return []
    names = ("censored", "with an event") if config.survival else config.target.classes
    found = Counter(int(bags.labels[patient]) for patient in validation)
    wanted = [1] if config.survival else range(len(names))
    return [
        f"{found[kind]} validation patients {'' if config.survival else 'of class '}{names[kind]}: fewer than "
        f"counts.min_cell {least}, so the site tells nothing of them"
        for kind in wanted
        if found[kind] < least
    ]
