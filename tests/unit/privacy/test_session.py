"""What a round costs, as the compliance log gets it: the ledger's epsilons before and after, and the site's budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedad_components.algorithms import fedad
from fedad_components.audit.event import Privacy
from fedad_components.config import FedADConfig
from fedad_components.imaging.account import Account
from fedad_components.imaging.cache import CachedImages
from fedad_components.imaging.catalogue import DataSet
from fedad_components.privacy.accountant import Charge, epsilon_unit
from fedad_components.privacy.ledger import BudgetExceeded, Ledger
from fedad_components.privacy.policy import PrivacyRules
from fedad_components.privacy.session import PrivacySession
from fedad_components.privacy.trainer import PrivateTrainer

STEPS, UNITS = 10, 400


class Trainer(PrivateTrainer):
    """Trains nothing."""

    def __init__(self) -> None:
        pass


def open_session(folder: Path, monkeypatch: pytest.MonkeyPatch, **privacy: Any) -> PrivacySession:
    monkeypatch.setattr(fedad, "make_trainer", lambda *arguments, **options: Trainer())
    config = FedADConfig.parse(
        {"model": {"image_size": 32, "norm": "group"}, "training": {"epochs": 1}, "privacy": privacy}
    )
    images = CachedImages(
        images=np.zeros((2, 32, 32, 3), np.uint8),
        patients=["a", "b"],
        labels=[None, None],
        files=["1", "2"],
        account=Account.of([]),
        folder=folder,
    )
    return PrivacySession(
        config,
        DataSet(id="images", folder=folder, units=UNITS),
        fedad.Images(config, images),
        site="a",
        job_id="job",
        ledger=Ledger(folder / "ledger.sqlite", folder / "head.json"),
        unit_key_file=folder / "unit_key",
    )


def test_dp_sgd_says_what_was_spent_and_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_session(tmp_path, monkeypatch, mode="dp_sgd", noise_multiplier=1.0, units_per_step=40, delta=1e-5)
    rules = PrivacyRules(max_epsilon=5.0)
    spent = [epsilon_unit([Charge(1.0, 40 / UNITS, STEPS)] * rounds, 1e-5) for rounds in (1, 2)]
    first, second = (opened.charge(number, rules, None) for number in (0, 1))
    common = {"mode": "dp_sgd", "data_set": "images", "unit": "bundle", "budget": 5.0, "delta": 1e-5}
    assert first == Privacy(**common, epsilon_before=0.0, epsilon_after=first.epsilon_after)
    assert second == Privacy(**common, epsilon_before=first.epsilon_after, epsilon_after=second.epsilon_after)
    assert [first.epsilon_after, second.epsilon_after] == pytest.approx(spent, rel=1e-4)
    with pytest.raises(BudgetExceeded):
        opened.charge(2, PrivacyRules(max_epsilon=spent[1]), None)


def test_a_mode_without_a_guarantee_has_no_epsilon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cost = open_session(tmp_path, monkeypatch, mode="none").charge(0, PrivacyRules(), None)
    assert cost == Privacy(mode="none", data_set="images")
