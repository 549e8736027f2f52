"""What a site's training process does about privacy in a job: units, ledger, protected update, and what it may say."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedad_components.audit.event import Privacy
from fedad_components.privacy.client_dp import clip_update
from fedad_components.privacy.ledger import Entry, Ledger, LedgerError
from fedad_components.privacy.mechanism import secure_generator
from fedad_components.privacy.plan import sample_rate, steps_per_round
from fedad_components.privacy.policy import PrivacyRules, check_patients
from fedad_components.privacy.units import UnitsError, assign_units, key_fingerprint, unit_key
from fedad_components.privacy.weight_noise import add_weight_noise

if TYPE_CHECKING:
    from fedad_components.algorithms import SiteData, Trainer
    from fedad_components.config import ExperimentConfig, PrivacyConfig
    from fedad_components.fedsd.trainer import RoundResult
    from fedad_components.imaging.catalogue import DataSet

logger = logging.getLogger("fedad.privacy")


def protect(
    theta_k: dict[str, torch.Tensor], theta: Mapping[str, torch.Tensor], privacy: PrivacyConfig
) -> dict[str, torch.Tensor]:
    """theta_k as it may leave: clipped for client_dp, with noise for weight_noise, else as trained."""
    if privacy.mode == "weight_noise":
        return add_weight_noise(theta_k, privacy.weight_noise_alpha, secure_generator())
    if privacy.mode == "client_dp":
        clipped = clip_update({name: tensor - theta[name] for name, tensor in theta_k.items()}, privacy.max_grad_norm)
        return {name: theta[name] + tensor for name, tensor in clipped.items()}
    return theta_k


class PrivacySession:
    """One job at one site: each round is charged to the site's ledger before it is trained.

    Raises:
        UnitsError: under dp_sgd, if the catalogue declares no units, or a record has no patient where it needs one.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        data_set: DataSet,
        opened: SiteData,
        *,
        site: str,
        job_id: str,
        ledger: Ledger,
        unit_key_file: str | Path,
    ) -> None:
        self._config, self._data_set, self._job_id, self._ledger = config, data_set, job_id, ledger
        # A record without a patient counts as one of its own, as it does for bundles.
        self._patients = len(
            {patient or ("", file) for patient, file in zip(opened.patients, opened.files, strict=True)}
        )
        self._protection: dict[str, Any] = {}
        self.trainer: Trainer
        if config.privacy.mode != "dp_sgd":
            self.trainer = opened.trainer(site)
            return
        if data_set.units is None:
            raise UnitsError(
                f"data set {data_set.id!r}: the job asks for privacy.mode 'dp_sgd', which needs the public number of "
                f"privacy units: add `units: N` to the data set in catalogue.yaml (docs/privacy.md says which N)"
            )
        key = unit_key(unit_key_file)
        units = assign_units(opened.patients, opened.files, config.privacy.unit, data_set.units, key)
        self.trainer = opened.trainer(site, units, data_set.units)
        self._protection = {
            "unit": config.privacy.unit,
            "units": data_set.units,
            "key_fingerprint": key_fingerprint(key),
            "noise_multiplier": config.privacy.noise_multiplier,
            "max_grad_norm": config.privacy.max_grad_norm,
            "sample_rate": sample_rate(data_set.units, config.privacy.units_per_step),
            "steps": steps_per_round(config.training.epochs, data_set.units, config.privacy.units_per_step),
            "delta": config.privacy.delta,
        }

    def charge(self, round_number: int, rules: PrivacyRules, known_head: str | None) -> Privacy:
        """Charge a round; to be called before each training, also of a round that is repeated: its noise is new.

        Returns:
            What it cost of the data set's budget, for the compliance log.

        Args:
            rules: the site's, for this data set.
            known_head: the ledger's head in the last result that the server has of this site.

        Raises:
            PolicyRefused: fewer patients than the rules want.
            BudgetExceeded: the round would pass the data set's budget.
            LedgerError: the ledger is missing, edited, or older than the server's last result.
        """
        check_patients(self._patients, rules)
        if known_head is not None and not self._ledger.contains(known_head):
            raise LedgerError(
                f"{self._ledger.path}: does not hold the entry that this site's last result was charged with: the "
                f"ledger was rolled back, together with the site's state. Restore its newest copy"
            )
        earlier = self._ledger.entries(self._data_set.id)
        row = self._ledger.charge(
            Entry(
                data_set=self._data_set.id,
                experiment=self._config.federation.experiment,
                job_id=self._job_id,
                round=round_number,
                mode=self._config.privacy.mode,
                **self._protection,
            ),
            max_epsilon=rules.max_epsilon,
            max_epsilon_record=rules.max_epsilon_record,
        )
        # Kept for `meta`: each look at the ledger verifies all of it.
        self._charged: dict[str, Any] = {"ledger_head": row.hash}
        claim = None
        if self._config.privacy.mode == "dp_sgd":
            claim = self._ledger.claim(self._data_set.id, self._config.federation.experiment)
            assert claim is not None
            self._charged["claim"] = claim.model_dump(mode="json")
        logger.info("round %d charged to the ledger: %s", round_number, claim or "no guarantee")
        protected = self._config.privacy.mode == "dp_sgd"
        return Privacy(
            mode=self._config.privacy.mode,
            data_set=self._data_set.id,
            unit=self._config.privacy.unit if protected else None,
            epsilon_before=(earlier[-1].epsilon_unit if earlier else 0.0) if protected else None,
            epsilon_after=row.epsilon_unit,
            budget=rules.max_epsilon if protected else None,
            delta=self._config.privacy.delta if protected else None,
        )

    def protect(self, theta_k: dict[str, torch.Tensor], theta: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """theta_k as it may leave; see :func:`protect`."""
        return protect(theta_k, theta, self._config.privacy)

    def meta(self, round_number: int, result: RoundResult) -> dict[str, Any]:
        """What may leave with the update, as JSON: keys of ``wire.ResultMeta``."""
        told = {
            "n_samples": result.n_samples,
            "losses": result.losses[-1] if result.losses else None,
            "events": result.events,
            "validation": result.validation,
        }
        wanted = self._config.reports(round_number)
        return self._charged | {name: value for name, value in told.items() if name in wanted}
