"""Patients at their sites, as bags, and how they are split. Imports no FLARE."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from fedad_components.mil.config import HistoFLConfig
from fedad_components.mil.site_bags import SiteBags
from fedad_components.mil.splits import Split, split_patients
from fedad_components.mil.trainer import split_of


class StudyError(ValueError):
    """Data that a study cannot use; the message names the file, what is wrong and what was expected."""


@dataclass(frozen=True)
class Cohort:
    """One bag a patient, at the sites that hold them; no patient is at two sites.

    Attributes:
        sites: site -> its bags.
        held_out: the test patients, where the data set itself names them; none: drawn by seed.
        scores: name -> patient -> what the patient's file says without any training, the higher the worse.
        standardised: whether features are, by :meth:`prepared`.
    """

    sites: Mapping[str, SiteBags]
    held_out: frozenset[str] = frozenset()
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    standardised: bool = False

    @property
    def pooled(self) -> SiteBags:
        """All patients in one place."""
        of_patient = {row.id: bags for bags in self.sites.values() for row in bags.rows}
        rows = tuple(row for bags in self.sites.values() for row in bags.rows)
        return SiteBags(rows, lambda name: of_patient[name].read(name))

    def splits(self, config: HistoFLConfig) -> dict[str, Split]:
        """Site -> its patients in three parts, as a site's own trainer splits them.

        Of a cohort with test patients of its own, the other patients are split so, and the part that would be tested
        is trained on.
        """
        return {site: self._split(bags, config, site) for site, bags in self.sites.items()}

    def prepared(self, splits: Mapping[str, Split]) -> Cohort:
        """Features less their mean, over their deviation, both of all sites' **training** instances.

        Every row of a study gets the same features, so that rows differ in training alone. A federation could add up
        the sites' sums for it; no job does.
        """
        if not self.standardised:
            return self
        known = torch.cat(
            [
                bags.bag(row).features
                for site, bags in self.sites.items()
                for row in bags.rows
                if row.owner in splits[site].train
            ]
        )
        mean, deviation = known.mean(dim=0), known.std(dim=0)
        deviation[deviation == 0] = 1
        return replace(
            self,
            sites={
                site: SiteBags(bags.rows, lambda name, read=bags.read: (read(name) - mean) / deviation)  # type: ignore[misc]
                for site, bags in self.sites.items()
            },
        )

    def _split(self, bags: SiteBags, config: HistoFLConfig, site: str) -> Split:
        if not self.held_out:
            return split_of(bags, config, site)
        known = {patient: label for patient, label in bags.labels.items() if patient not in self.held_out}
        drawn = split_patients(known, config.seed, site)
        return Split(drawn.train | drawn.test, drawn.validation, frozenset(bags.labels) - frozenset(known))


def joined(splits: Mapping[str, Split]) -> Split:
    """The sites' parts together: who tests at a site tests in the pool too."""
    return Split(*(frozenset().union(*parts) for parts in zip(*splits.values(), strict=True)))


def read_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """A CSV file with a header.

    Raises:
        StudyError: if it is not there, is empty, or lacks one of ``columns``.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path}: cannot be read ({error}): --data names the folder with mil/ and survival/") from None
    missing = [column for column in columns if not rows or column not in rows[0]]
    if missing:
        raise StudyError(f"{path}: no rows, or no column {', '.join(missing)}: expected {', '.join(columns)}")
    return rows


def number(row: Mapping[str, str], column: str, path: Path, line: int) -> float:
    """A cell as a finite number; StudyError if it is none."""
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        value = np.nan
    if not np.isfinite(value):
        raise StudyError(f"{path}, line {line}: {column} is {row[column]!r}: expected a number")
    return value
