"""One site's local training, Algorithm 1, lines 12-26. Imports torch and numpy only."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedad_components.fedsd.losses import Loss, alive, fedsd
from fedad_components.fedsd.model import (
    build_extractor,
    build_projection,
    estimate_statistics,
    feature_count,
    head_of,
    split,
)
from fedad_components.fedsd.seeds import PUBLIC, stream
from fedad_components.fedsd.state import (
    HEAD_PREFIX,
    is_statistic,
    load_wire_state,
    require_names,
    wire_state,
)
from fedad_components.fedsd.style import style_statistics, style_targets
from fedad_components.fedsd.teacher import Teacher, native_bf16
from fedad_components.fedsd.views import Views
from fedad_components.methods.local import SHARED_PREFIX, LocalMethod, make_local_method

if TYPE_CHECKING:
    from fedad_components.config import FedADConfig

SMALLEST_BATCH = 2
"""One image has no negatives in Eq. 2."""
STATISTICS_PREFIX = "extractor."
METHOD_PREFIX = "method."
TEACHER_PREFIX = "teacher."
STATISTICS_BATCHES = 8
"""Batches from which a site that joins under ``norm: local`` measures its BatchNorm statistics."""


class TrainingError(RuntimeError):
    """Local training that cannot start or go on; the message names the site, and the round and epoch once begun."""


@dataclass(frozen=True)
class RoundResult:
    """What a round of local training yields. Nothing in it is computed per image, but for what FedDG shares."""

    update: dict[str, Tensor]
    """Full wire state theta_k after training, on the CPU, and what the method shares beside it."""
    n_samples: int | None
    """n_k of the aggregation: images of the site that are trained on. None under dp_sgd."""
    losses: list[dict[str, float]]
    """One entry an epoch, image means: ``total``, ``contrastive``, ``alignment`` and ``orthogonality``, with their
    weights: ``total`` is the sum of the others. Empty under dp_sgd."""
    dead_z_d: float | None
    """Share of z_d without a direction in the last epoch: where gamma = lambda_t = 0 let it decay, no diagnostic of z_d
    means anything. None under dp_sgd."""
    seconds: float
    events: list[int] | None = None
    validation: dict[str, Any] | None = None
    """HistoFL: the counts of ``wire.ResultMeta``, which add up over the sites."""


class Report(NamedTuple):
    """What a round says about the images besides theta_k: the fields of :class:`RoundResult`; by default, nothing."""

    n_samples: int | None = None
    losses: list[dict[str, float]] = []  # noqa: RUF012 (a NamedTuple's field; nobody changes it)
    dead_z_d: float | None = None


def choose_device(configured: str) -> torch.device:
    """The device of ``training.device``; ``auto`` is CUDA where there is one.

    Raises:
        TrainingError: if CUDA is asked for and there is none.
    """
    if configured == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if configured.startswith("cuda") and not torch.cuda.is_available():
        raise TrainingError(
            f"training.device is {configured!r}, but this machine has no usable CUDA device: use 'auto'"
        )
    return torch.device(configured)


def uses_bf16(amp: str, device: torch.device) -> bool:
    """Whether ``training.amp`` means bf16 autocast on this device.

    Raises:
        TrainingError: if it is asked for, and the device would have to emulate it.
    """
    native = amp != "off" and native_bf16(device)
    if amp == "bf16" and not native:
        raise TrainingError(f"training.amp is 'bf16', which this {device.type} does not compute natively: use 'auto'")
    return native and (amp == "bf16" or device.type == "cuda")


def chosen_images(count: int, limit: int, seed: int, site: str) -> Tensor:
    """Ascending indices of a site's images to train on: all, or a seeded subset that is the same in every round.

    ``count``: of the site's images; ``limit``: ``training.max_images``, 0 for all.
    """
    if not 0 < limit < count:
        return torch.arange(count)
    return torch.randperm(count, generator=stream(seed, "subset", site))[:limit].sort().values


class Batch(NamedTuple):
    """What a step is taken on."""

    x: Tensor
    """Views, ``(2N, 3, P, P)``."""
    whole: Tensor | None = None
    """``(N, 3, P, P)``: the images for the teacher, where it does not see the views."""
    style: Tensor | None = None
    """``(N, 128)``: z_d's targets under ``domain_target: style``."""


class Student:
    """A round's student and its optimiser: one call of :meth:`step` is one gradient step.

    Parameters that need no gradient are not trained. ``method`` is what another method than FedAD does in a step.
    """

    def __init__(
        self,
        extractor: nn.Module,
        head: nn.Module,
        teacher: Teacher | None,
        config: FedADConfig,
        device: torch.device,
        method: LocalMethod | None = None,
    ) -> None:
        training = config.training
        self.method = method
        self.extractor, self.head, self.teacher, self.config = extractor.train(), head.train(), teacher, config
        self.amp = uses_bf16(training.amp, device)
        self.parameters = [
            parameter for parameter in (*extractor.parameters(), *head.parameters()) if parameter.requires_grad
        ]
        self.optimizer = torch.optim.Adam(
            self.parameters,
            lr=training.learning_rate,
            betas=(training.betas[0], training.betas[1]),
            weight_decay=training.weight_decay,
            fused=True,
        )

    def embed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z_s and z_d, ``(2, N, 128)`` each, of views ``(2N, 3, P, P)``."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.amp):
            z_s, z_d = split(self.head(self.extractor(x)).unflatten(0, (2, -1)))
        return z_s, z_d

    def loss(self, batch: Batch, lambda_t: float, negatives: Tensor | None = None) -> tuple[Loss, Tensor]:
        """The loss on a batch, and z_d ``(2, N, 128)``; without a teacher, lambda_t has to be 0."""
        x, whole, style = batch
        z_g = None
        if self.teacher:
            # It goes first: its activations are gone before the student's, which are kept for the gradient, exist.
            z_g = self.teacher(x).unflatten(0, (2, -1)) if whole is None else self.teacher(whole)[None]
        z_s, z_d = self.embed(x)
        if self.method:
            return self.method.loss(x, z_s, z_d), z_d
        return fedsd(z_s, z_d, z_g, lambda_t, self.config.loss, style, negatives), z_d

    def step(self, batch: Batch, lambda_t: float) -> tuple[Loss, Tensor]:
        """One step on a batch: :meth:`loss` before the step, both without gradient."""
        loss, z_d = self.loss(batch, lambda_t)
        self.descend(loss.total)
        return Loss(*(term.detach() for term in loss)), z_d.detach()

    def descend(self, loss: Tensor) -> None:
        """One step of the optimiser down this loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.method:
            self.method.before_step()
        self.optimizer.step()
        if self.method:
            self.method.after_step()


class LocalTrainer:
    """Trains at one site, round by round. The private head (and local BatchNorm statistics) stay here between rounds.

    Args:
        config: a FedADConfig, or an object with the same attributes.
        images: uint8 ``(n, S, S, 3)``, an array or memory map.
        site: the site's name; it enters the seeds and the error messages, nothing else.
        device: overrides ``training.device``.

    Raises:
        TrainingError: if the images are not of that form, or fewer than two, or the configuration asks for a mode of
            privacy that needs another trainer.
    """

    modes: ClassVar[frozenset[str]] = frozenset({"none", "weight_noise", "client_dp"})
    """Values of ``privacy.mode`` under which this trainer may train."""
    fewest_images: ClassVar[int] = SMALLEST_BATCH

    def __init__(
        self, config: FedADConfig, images: np.ndarray, site: str, device: str | torch.device | None = None
    ) -> None:
        if config.privacy.mode not in self.modes:
            raise TrainingError(
                f"site {site}: {type(self).__name__} does not train under privacy.mode {config.privacy.mode!r}: use "
                f"fedad_components.privacy.trainer.make_trainer"
            )
        if images.ndim != 4 or images.shape[3] != 3 or images.shape[1] != images.shape[2] or images.dtype != np.uint8:
            raise TrainingError(
                f"site {site}: expected uint8 images (n, S, S, 3), got {images.dtype} {tuple(images.shape)}: ingest "
                f"them again"
            )
        self.config, self.images, self.site = config, images, site
        self.chosen = chosen_images(len(images), config.training.max_images, config.seed, site)
        if len(self.chosen) < self.fewest_images:
            raise TrainingError(
                f"site {site}: {len(self.chosen)} images to train on; contrastive learning needs at least "
                f"{self.fewest_images}"
            )
        self.device = torch.device(device) if device is not None else choose_device(config.training.device)
        self.private_head = config.loss.head == "private"
        self.extractor = self._to_device(build_extractor(config.model, config.seed))
        self.head = self._to_device(head_of(config, site if self.private_head else PUBLIC))
        self.method = make_local_method(config)
        if self.method:
            self.method.prepare(self._load, len(self.chosen), stream(config.seed, "method", site))
        self.projection = build_projection(config.seed, feature_count(config.model))
        self.views = Views(config.views, config.model.image_size)
        self.styles = self._style_targets() if config.loss.domain_target == "style" else None
        self.has_statistics = config.model.norm != "local"
        self.average: nn.Module | None = None
        """Moving average of the global models, under ``teacher_momentum``; None before the first."""

    def train_round(
        self,
        global_state: Mapping[str, Tensor],
        lambda_t: float,
        round_number: int,
        on_epoch: Callable[[int, dict[str, float]], None] | None = None,
    ) -> RoundResult:
        """E local epochs from theta^t. The site's own state changes only if the round succeeds.

        Args:
            global_state: theta^t, names as on the wire.
            lambda_t: weight of the alignment.
            round_number: t; it enters the seeds.
            on_epoch: called with the epoch's number, from 0, and its losses. Not under dp_sgd.

        Raises:
            StateError: if theta^t does not fit the configuration.
            TrainingError: if the loss is not finite.
        """
        began = time.perf_counter()
        config, norm = self.config, self.config.model.norm
        extractor, head = copy.deepcopy(self.extractor), copy.deepcopy(self.head)
        shared_head = None if self.private_head else head
        shared = {name: tensor for name, tensor in global_state.items() if name.startswith(SHARED_PREFIX)}
        weights = {name: tensor for name, tensor in global_state.items() if name not in shared}
        load_wire_state(weights, extractor, shared_head, norm)
        if not self.has_statistics:
            estimate_statistics(extractor, self._statistics_batches())

        needs_teacher = lambda_t != 0
        taught = self._averaged(extractor)
        teacher = Teacher(taught, self.projection, config.training, self.device) if needs_teacher else None
        if self.method:
            self.method.receive(shared, stream(config.seed, "method", self.site, round_number))
            self.method.begin_round(extractor, head)
        student = Student(extractor, head, teacher, config, self.device, self.method)
        report = self._train(student, lambda_t, round_number, on_epoch)
        if self.method:
            self.method.end_round(extractor, head)

        self.extractor, self.head, self.has_statistics = extractor, head, True
        self.average = taught if config.loss.teacher_momentum else None
        update = wire_state(extractor, shared_head, norm) | (self.method.send() if self.method else {})
        return RoundResult(update, *report, seconds=time.perf_counter() - began)

    def site_state(self) -> dict[str, Tensor]:
        """What is private and survives at the site: the head, BatchNorm's statistics under ``norm: local``, and
        what the method keeps.
        """
        state: dict[str, Tensor] = {}
        if self.private_head:
            state |= {HEAD_PREFIX + name: tensor for name, tensor in wire_state(self.head).items()}
        if self.config.model.norm == "local" and self.has_statistics:
            everything = wire_state(self.extractor)
            state |= {STATISTICS_PREFIX + name: everything[name] for name in everything if is_statistic(name)}
        if self.average is not None:
            state |= {TEACHER_PREFIX + name: tensor for name, tensor in wire_state(self.average).items()}
        if self.method:
            state |= {METHOD_PREFIX + name: tensor for name, tensor in self.method.kept.items()}
        return state

    @torch.no_grad()
    def load_site_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue with a saved ``site_state()``.

        Raises:
            StateError: naming missing or unknown keys; nothing is changed then.
        """
        own: dict[str, Tensor] = {}
        if self.private_head:
            own |= {HEAD_PREFIX + name: tensor for name, tensor in self.head.state_dict().items()}
        has_statistics = any(name.startswith(STATISTICS_PREFIX) for name in state)
        if has_statistics and self.config.model.norm == "local":
            buffers = self.extractor.named_buffers()
            own |= {STATISTICS_PREFIX + name: tensor for name, tensor in buffers if is_statistic(name)}
        average = None
        if self.config.loss.teacher_momentum and any(name.startswith(TEACHER_PREFIX) for name in state):
            average = copy.deepcopy(self.extractor)
            everything = average.state_dict()
            own |= {TEACHER_PREFIX + name: everything[name] for name in wire_state(average)}
        kept = {name: state[name] for name in state if self.method and name.startswith(METHOD_PREFIX)}
        require_names(state.keys() - kept.keys(), own, f"private state of site {self.site}")
        for name, tensor in own.items():
            tensor.copy_(state[name])
        self.average = average
        if self.method:
            self.method.kept = {name.removeprefix(METHOD_PREFIX): tensor for name, tensor in kept.items()}
        self.has_statistics = self.has_statistics or has_statistics

    @torch.no_grad()
    def _averaged(self, extractor: nn.Module) -> nn.Module:
        """theta~ of the round: theta^t, or the average of the global models that came before with this one."""
        if self.average is None:
            return copy.deepcopy(extractor) if self.config.loss.teacher_momentum else extractor
        average, momentum = copy.deepcopy(self.average), self.config.loss.teacher_momentum
        before, latest = wire_state(average), wire_state(extractor)
        load_wire_state({name: torch.lerp(latest[name], before[name], momentum) for name in before}, average)
        return average

    def _train(
        self,
        student: Student,
        lambda_t: float,
        round_number: int,
        on_epoch: Callable[[int, dict[str, float]], None] | None,
    ) -> Report:
        """All epochs of a round, in place."""
        order = stream(self.config.seed, "order", self.site, round_number)
        view_stream = stream(self.config.seed, "views", self.site, round_number)
        losses, dead = [], 0.0
        for epoch in range(self.config.training.epochs):
            epoch_losses, dead = self._train_epoch(student, lambda_t, order, view_stream)
            if not np.isfinite(epoch_losses["total"]):
                raise TrainingError(
                    f"site {self.site}, round {round_number}, epoch {epoch}: the loss is not finite ({epoch_losses}): "
                    f"the round's update is discarded. Lower training.learning_rate, or set training.amp to 'off'"
                )
            losses.append(epoch_losses)
            if on_epoch is not None:
                on_epoch(epoch, epoch_losses)
        return Report(len(self.chosen), losses, dead)

    def _train_epoch(
        self, student: Student, lambda_t: float, order: torch.Generator, view_stream: torch.Generator
    ) -> tuple[dict[str, float], float]:
        """The epoch's mean losses and share of dead z_d."""
        sums = torch.zeros(len(Loss._fields) + 1, dtype=torch.float64, device=self.device)
        images_seen = 0
        for rows in self._batches(order):
            batch = self.batch(rows, view_stream)
            if self.styles is not None:
                batch = batch._replace(style=self.styles[rows].to(self.device))
            loss, z_d = student.step(batch, lambda_t)
            dead = 1 - alive(z_d).float().mean()
            sums += len(rows) * torch.stack([*loss, dead]).double()  # no .item(): it would wait for the GPU
            images_seen += len(rows)
        *means, dead_share = (sums / images_seen).tolist()
        return dict(zip(Loss._fields, means, strict=True)), dead_share

    def _batches(self, order: torch.Generator) -> Iterator[Tensor]:
        """Positions in ``chosen``, newly shuffled, batch by batch; a single image left over sits the epoch out."""
        for batch in torch.randperm(len(self.chosen), generator=order).split(self.config.training.batch_size):
            if len(batch) >= SMALLEST_BATCH:
                yield batch

    def batch(self, rows: Tensor, view_stream: torch.Generator) -> Batch:
        """Views, newly drawn, of the images at these positions in ``chosen``; without styles."""
        images = self._load(rows)
        whole = self.views.whole(images) if self.config.loss.teacher_view == "whole" else None
        # What is drawn is the same whatever a method takes the views of.
        draw = self.views.draw(2 * len(rows), images.shape[1], view_stream)
        return Batch(self.views.apply(self.method.sources(images) if self.method else images, draw), whole)

    def _load(self, batch: Tensor) -> Tensor:
        """``(N, S, S, 3)`` uint8 on the device."""
        return torch.from_numpy(np.asarray(self.images[self.chosen[batch].numpy()])).to(self.device)

    def _statistics_batches(self) -> Iterator[Tensor]:
        generator = stream(self.config.seed, "statistics", self.site)
        for number, batch in enumerate(self._batches(generator)):
            if number == STATISTICS_BATCHES:
                return
            yield self.views(self._load(batch), generator)

    def _style_targets(self) -> Tensor:
        """``(n, 128)``, one row an image of ``chosen``."""
        positions = torch.arange(len(self.chosen)).split(self.config.training.batch_size)
        statistics = torch.cat([style_statistics(self._load(batch)).cpu() for batch in positions])
        return style_targets(statistics, self.config.seed)

    def _to_device(self, module: nn.Module) -> nn.Module:
        return module.to(self.device).to(memory_format=torch.channels_last)
