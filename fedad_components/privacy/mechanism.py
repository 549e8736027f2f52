"""The group-clipped Gaussian mechanism, on Opacus: one clipped gradient a privacy unit, summed, noised, averaged.

Opacus's engine is not used, only its optimiser and sampler: the engine clips one gradient a sample, and NT-Xent couples
the samples of a batch.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Sequence

import torch
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import Tensor, nn

_MT19937_WORDS = 624
_MT19937_OFFSET = 24
"""Bytes of a CPU generator's state before the words: seed (uint64), words left, seeded (int32 each), next (uint64)."""


def secure_generator(device: str | torch.device = "cpu") -> torch.Generator:
    """A generator seeded by the operating system's entropy; nobody can ask for the seed or set it.

    A CPU generator gets all of its 19,968 bits of state: ``manual_seed`` uses 32 bits of its argument, few enough to
    try them all on noise that has left. A CUDA generator (Philox) gets 63. Neither is a cipher: who saw a step's noise
    at some thousand coordinates could work out the others'. Hence a new one for each step, of which there are many
    between two updates that leave.
    """
    generator = torch.Generator(device)
    generator.manual_seed(secrets.randbits(63))
    if generator.device.type == "cpu":
        state = generator.get_state()
        words = torch.frombuffer(bytearray(secrets.token_bytes(4 * _MT19937_WORDS)), dtype=torch.int32)
        # Each word of 32 bits has 64 in the state.
        wide = words.to(torch.int64).bitwise_and_(0xFFFFFFFF).view(torch.uint8)
        state[_MT19937_OFFSET : _MT19937_OFFSET + len(wide)] = wide
        generator.set_state(state)
    return generator


def sample_units(units_present: int, sample_rate: float, generator: torch.Generator) -> list[int]:
    """Poisson draw: each of ``units_present`` positions independently with probability ``sample_rate``, ascending."""
    if units_present == 0:
        return []
    sampler = UniformWithReplacementSampler(
        num_samples=units_present, sample_rate=sample_rate, generator=generator, steps=1
    )
    return list(next(iter(sampler)))


class GroupGaussian:
    """One step of DP-SGD over privacy units: sum of the units' clipped gradients + N(0, (sigma C)^2 I), over E[units].

    A unit's gradient is that of its own loss over all parameters at once, clipped to C as one vector. Sensitivity under
    adding or removing a unit is therefore C, provided that no unit's loss depends on another unit.

    Args:
        parameters: all that is trained; the same that ``optimizer`` holds.
        optimizer: takes the step on the noised mean.
        noise_multiplier: sigma. Zero is for tests and audits; a configuration cannot say it.
        max_grad_norm: C.
        expected_units: the denominator: of the draw's expectation, not of the draw, whose size is private.
        generator: source of the noise, for tests; None: a new :func:`secure_generator` in each step.

    Raises:
        ValueError: naming a parameter of the mechanism out of range, or if the optimiser holds other parameters.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        *,
        noise_multiplier: float,
        max_grad_norm: float,
        expected_units: float,
        generator: torch.Generator | None = None,
    ) -> None:
        if not 0 <= noise_multiplier < math.inf:
            raise ValueError(f"noise_multiplier {noise_multiplier}: expected a finite number, at least 0")
        for name, value in (("max_grad_norm", max_grad_norm), ("expected_units", expected_units)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} {value}: expected a finite number above 0")
        self._parameters, self._generator = list(parameters), generator
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if held != {id(parameter) for parameter in self._parameters}:
            raise ValueError("the optimiser holds other parameters than those given: it would train some without noise")
        self._optimizer = DPOptimizer(
            optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=expected_units,
        )
        self._optimizer.attach_step_hook(_match_layout)

    def step(self, unit_losses: Iterable[Callable[[], Tensor]]) -> None:
        """One noised step.

        Args:
            unit_losses: for each drawn unit, a function that returns its loss, a scalar. None at all: the step is taken
                on noise alone. A unit whose gradient is not finite counts as zero.
        """
        optimizer = self._optimizer
        optimizer.zero_grad(set_to_none=True)
        for unit_loss in unit_losses:
            gradients = torch.autograd.grad(unit_loss(), self._parameters, allow_unused=True, materialize_grads=True)
            norm = _norm(gradients)
            if math.isfinite(norm):
                torch._foreach_mul_(gradients, min(1.0, optimizer.max_grad_norm / norm) if norm else 1.0)
                self._set([gradient[None] for gradient in gradients])
                optimizer.clip_and_accumulate()
        self._set([parameter.new_zeros((0, *parameter.shape)) for parameter in self._parameters])
        optimizer.generator = self._generator or secure_generator(self._parameters[0].device)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def _set(self, gradients: Sequence[Tensor]) -> None:
        """Hand Opacus the gradients of 0 or 1 units, ``(0 or 1, ...)`` for each parameter."""
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad_sample = gradient  # type: ignore[attr-defined]


def _norm(gradients: Sequence[Tensor]) -> float:
    """L2 norm of all tensors as one vector, summed in float64.

    In float32, PyTorch's norm of ten million entries is short by 4e-4, and Opacus, which clips by it, would let that
    much more than C through. Clipped by this one, a gradient leaves Opacus nothing to shorten.
    """
    squares = [torch.linalg.vector_norm(gradient, dtype=torch.float64).square() for gradient in gradients]
    return math.sqrt(torch.stack(squares).sum().item())


def _match_layout(optimizer: DPOptimizer) -> None:
    """Give each gradient its parameter's strides.

    Opacus's sums are contiguous where weights are channels_last, and fused Adam reads a gradient as if it were laid out
    like its parameter, without a word.
    """
    for parameter in optimizer.params:
        if parameter.grad.stride() != parameter.stride():
            parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
