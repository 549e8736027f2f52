"""What an experiment costs: GPU hours and bytes on the wire, from counts, the configuration and the time of one step.

K sites hold n_1 ... n_K images; a round draws M of them uniformly; E local epochs, batches of B, T rounds, s seconds a
step, W bytes of weights.

- steps of site k in an epoch: b_k = ceil(n_k / B), less one where a single image would be left over, which sits out.
- GPU hours, expected: T · (M / K) · E · sum_k b_k · s / 3600. Each site takes part in a share M / K of the rounds.
- Hours of the federation, expected, if every site has a GPU as fast: T · E · b_max · s / 3600, with b_max the mean over
  all draws of the slowest drawn site's steps: with b sorted, sum_k b_(k) · C(k-1, M-1) / C(K, M).
- Bytes on the wire: T · M · 2 · W: to each drawn site and back. W is 4 or 2 bytes an element of ``wire_spec``. Framing
  and meta are some kilobytes beside that.

Not in it: decoding, aggregation, the network's time, evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fedad_components.datasets.facts import SPECS
from fedad_components.datasets.split import TEST_SHARE

if TYPE_CHECKING:
    from fedad_components.config import FedADConfig

PAPER_SITES_PER_ROUND = 4
"""M: the paper draws 4 of 6"""

ASSUMED_STEP_MS = 100.0
"""A round number to start from, measured nowhere: benchmarks/step_cost.py measures it on the machine in question"""

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Cost:
    """An estimate; the module's head has the formulae.

    Attributes:
        step_ms: milliseconds of a step, views included.
        step_ms_is: ``assumed`` or ``given by the user``.
        steps: expected optimisation steps over all sites and rounds.
        gpu_hours: expected, over all sites.
        federation_hours: expected wall-clock training time, waiting for the slowest site of each round.
        weight_bytes: W.
        wire_bytes: all rounds, both directions, over all sites.
        wire_gb: the same in 10⁹ bytes.
    """

    images: dict[str, int]
    rounds: int
    sites_per_round: int
    epochs: int
    batch_size: int
    image_size: int
    step_ms: float
    step_ms_is: str
    steps: float
    gpu_hours: float
    federation_hours: float
    weight_bytes: int
    wire_bytes: int
    wire_gb: float

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return asdict(self)


def steps_per_epoch(images: int, batch_size: int) -> int:
    """Steps of a site in one epoch: b_k."""
    return images // batch_size + (images % batch_size > 1)


def mean_slowest(steps: Sequence[int], drawn: int) -> float:
    """Mean, over all draws of ``drawn`` sites, of the largest number of steps among them: b_max."""
    ordered = sorted(steps)
    ways = sum(largest * math.comb(smaller, drawn - 1) for smaller, largest in enumerate(ordered))
    return ways / math.comb(len(ordered), drawn)


def estimate(images: Mapping[str, int], config: FedADConfig, step_ms: float | None = None) -> Cost:
    """Cost of an experiment under a configuration.

    Args:
        images: site → images that it trains on.
        config: rounds, sites per round (0: all), epochs, batch size, model and type on the wire.
        step_ms: time of a step of ``batch_size`` images with its views, in milliseconds; None: ``ASSUMED_STEP_MS``.

    Raises:
        ValueError: if there is no site, fewer than are drawn, or a site has too few images for a step.
    """
    from fedad_components.fedsd.state import wire_spec

    federation, training = config.federation, config.training
    drawn = federation.sites_per_round or len(images)
    if not 1 <= drawn <= len(images):
        raise ValueError(
            f"federation.sites_per_round = {drawn}: expected at most the {len(images)} sites that there are"
        )
    used = {site: min(n, training.max_images) if training.max_images else n for site, n in images.items()}
    if small := [site for site, n in used.items() if n < 2]:
        raise ValueError(f"site {small[0]}: {used[small[0]]} images: expected two at least, a batch is not smaller")
    steps = [steps_per_epoch(n, training.batch_size) for n in used.values()]
    seconds = (ASSUMED_STEP_MS if step_ms is None else step_ms) / 1000.0
    total_steps = federation.rounds * drawn / len(steps) * training.epochs * sum(steps)
    slowest = federation.rounds * training.epochs * mean_slowest(steps, drawn)
    weight_bytes = ELEMENT_BYTES[federation.wire_dtype] * sum(math.prod(shape) for shape in wire_spec(config).values())
    wire_bytes = federation.rounds * drawn * 2 * weight_bytes
    return Cost(
        images=used,
        rounds=federation.rounds,
        sites_per_round=drawn,
        epochs=training.epochs,
        batch_size=training.batch_size,
        image_size=config.model.image_size,
        step_ms=seconds * 1000.0,
        step_ms_is="assumed" if step_ms is None else "given by the user",
        steps=total_steps,
        gpu_hours=total_steps * seconds / 3600.0,
        federation_hours=slowest * seconds / 3600.0,
        weight_bytes=weight_bytes,
        wire_bytes=wire_bytes,
        wire_gb=wire_bytes / 1e9,
    )


def paper_sites() -> dict[str, int]:
    """The paper's six sources, a site each, with the images of their train parts."""
    return {spec.name: spec.training_images(TEST_SHARE) for spec in SPECS.values() if spec.role == "source"}
