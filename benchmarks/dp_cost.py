"""Cost of a dp_sgd step against the plain FedSD step of as many images: time and peak memory, interleaved in one run.

    python benchmarks/dp_cost.py                            # 64 and 224 px, about 10 minutes on 2 idle cores
    python benchmarks/dp_cost.py --image-size 64 --repeats 9 --norm group --json dp_cost.json

The plain step is ``Student.step`` on one batch; the private one is ``GroupGaussian.step`` on units of 8 images, as the
private trainer takes it: a forward and a backward pass for each unit, clipping, noise over all weights from a generator
that the operating system seeds, Adam. Both have the same teacher, precision and views. "time" compares steps on views
that are ready; "+views" adds their making, for which the private step augments unit by unit. "norm" is the private
student's; the plain one has the default. Steps alternate, and a ratio is the median over neighbouring pairs: a busy
machine slows both.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from steps import (
    LAMBDA_T,
    WARM_UP,
    default_config,
    in_fresh_process,
    make_student,
    peak_bytes,
    random_images,
    random_views,
    start,
    step_parser,
    synchronised_time,
    write_json,
)

from fedad_components.fedsd.trainer import Batch
from fedad_components.fedsd.views import Views
from fedad_components.privacy.mechanism import GroupGaussian

METHODS = ("plain", "private")
UNIT_SIZE = 8
NORMS = ("folded", "group")

Step = Callable[[list[torch.Tensor]], Any]


def configuration(image_size: int, norm: str | None = None) -> Any:
    """The defaults at that size, with another ``model.norm`` if given."""
    config = default_config()
    config.model.image_size, config.model.norm = image_size, norm or config.model.norm
    return config


def make_step(method: str, image_size: int, norm: str, units: int, device: torch.device) -> Step:
    """A method's step on the views of each unit, ``(2 UNIT_SIZE, 3, P, P)``; the plain one's are a single batch."""
    if method == "plain":
        student = make_student("fedad", configuration(image_size), device)
        return lambda views: student.step(Batch(views[0]), LAMBDA_T)
    student = make_student("fedad", configuration(image_size, norm), device)
    mechanism = GroupGaussian(
        student.parameters, student.optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_units=units
    )

    def unit_loss(x: torch.Tensor) -> torch.Tensor:
        loss, _ = student.loss(Batch(x), LAMBDA_T)
        return loss.total

    return lambda views: mechanism.step(partial(unit_loss, x) for x in views)


def measure_time(image_size: int, norm: str, units: int, repeats: int, device: torch.device) -> dict[str, Any]:
    """Seconds of each step and of its views, alternating."""
    config = configuration(image_size)
    images, generator = random_images(config, units * UNIT_SIZE, device), torch.Generator().manual_seed(1)
    parts = {"plain": [images], "private": list(images.split(UNIT_SIZE))}
    augment = Views(config.views, image_size)
    steps = {method: make_step(method, image_size, norm, units, device) for method in METHODS}
    seconds: dict[str, list[float]] = {name: [] for method in METHODS for name in (method, f"{method}_views")}
    for repeat in range(WARM_UP + repeats):
        for method in METHODS if repeat % 2 else reversed(METHODS):
            began = synchronised_time(device)
            views = [augment(part, generator) for part in parts[method]]
            made = synchronised_time(device)
            steps[method](views)
            done = synchronised_time(device)
            if repeat >= WARM_UP:
                seconds[f"{method}_views"].append(made - began)
                seconds[method].append(done - made)
    pairs = list(zip(*(seconds[name] for name in ("plain", "private", "plain_views", "private_views")), strict=True))
    return {
        **{f"{name}_ms": 1e3 * statistics.median(values) for name, values in seconds.items()},
        "time_ratio": statistics.median(private / plain for plain, private, _, _ in pairs),
        "time_ratio_with_views": statistics.median((b + d) / (a + c) for a, b, c, d in pairs),
    }


def peak_memory(method: str, image_size: int, norm: str, units: int, device: torch.device) -> int:
    """Bytes at the peak of a method's step."""
    x = random_views(configuration(image_size), units * UNIT_SIZE, device)
    views = [x] if method == "plain" else list(x.split(2 * UNIT_SIZE))
    step = make_step(method, image_size, norm, units, device)
    return peak_bytes(lambda: step(views), device)


def measure(image_size: int, norm: str, units: int, repeats: int, device: torch.device) -> dict[str, Any]:
    """One row of the table."""
    peaks = {method: in_fresh_process(peak_memory, method, image_size, norm, units, device) for method in METHODS}
    return {
        "image_size": image_size,
        "norm": norm,
        "units": units,
        "unit_size": UNIT_SIZE,
        **measure_time(image_size, norm, units, repeats, device),
        **{f"{method}_peak_mib": peak / 2**20 for method, peak in peaks.items()},
        "memory_ratio": peaks["private"] / peaks["plain"],
    }


def main() -> None:
    parser = step_parser(__doc__, image_sizes=[64, 224], repeats_on_cpu=5)
    parser.add_argument("--norm", nargs="+", choices=NORMS, default=["folded"], help="norms of the private student")
    parser.add_argument("--units", type=int, default=8, help=f"units in a step, of {UNIT_SIZE} images each")
    arguments = parser.parse_args()
    device, repeats = start(arguments)
    print(f"{arguments.units} units of {UNIT_SIZE} images in a step")
    print(f"{'px':>4} {'norm':>7} {'plain ms':>9} {'private ms':>11} {'time':>7} {'+views':>7} {'memory':>7}")
    rows = []
    for image_size in arguments.image_size:
        for norm in arguments.norm:
            row = measure(image_size, norm, arguments.units, repeats, device)
            rows.append(row)
            print(
                f"{image_size:>4} {norm:>7} {row['plain_ms']:>9.1f} {row['private_ms']:>11.1f} "
                f"{row['time_ratio']:>6.3f}x {row['time_ratio_with_views']:>6.3f}x {row['memory_ratio']:>6.3f}x",
                flush=True,
            )
    write_json(arguments.json, device, rows)


if __name__ == "__main__":
    main()
