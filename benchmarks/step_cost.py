"""Cost of a FedAD step against an equally tuned SimCLR step: time and peak memory, interleaved in one run.

    python benchmarks/step_cost.py                          # 96 and 224 px, about 3 minutes on 2 idle cores
    python benchmarks/step_cost.py --device cuda --batch-size 64 --repeats 30 --json step_cost.json

Both steps run the same code (``Student.step``) with the same student, views, precision and optimiser. SimCLR is that
step with lambda_t = gamma = 0: no teacher, no extra terms. "time" compares steps on views that are ready, "+views" adds
the making of the views to both. Steps alternate, and a ratio is the median over neighbouring pairs: a busy machine
slows both. Needs only torch, torchvision and numpy: without pydantic the defaults are read from the exported job.
"""

from __future__ import annotations

import statistics
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

from fedad_components.fedsd.teacher import teacher_dtype
from fedad_components.fedsd.trainer import Batch
from fedad_components.fedsd.views import Views

METHODS = ("simclr", "fedad")


def measure_time(config: Any, batch_size: int, repeats: int, device: torch.device) -> dict[str, Any]:
    """Seconds of each step and of the views, alternating."""
    images, generator = random_images(config, batch_size, device), torch.Generator().manual_seed(1)
    views = Views(config.views, config.model.image_size)
    students = {method: make_student(method, config, device) for method in METHODS}
    seconds: dict[str, list[float]] = {"views": [], "simclr": [], "fedad": []}
    for repeat in range(WARM_UP + repeats):
        measured = {}
        began = synchronised_time(device)
        x = views(images, generator)
        measured["views"] = synchronised_time(device) - began
        for method in METHODS if repeat % 2 else reversed(METHODS):
            began = synchronised_time(device)
            students[method].step(Batch(x), LAMBDA_T if method == "fedad" else 0.0)
            measured[method] = synchronised_time(device) - began
        if repeat >= WARM_UP:
            for name, value in measured.items():
                seconds[name].append(value)
    pairs = list(zip(*(seconds[name] for name in ("simclr", "fedad", "views")), strict=True))
    return {
        **{f"{name}_ms": 1e3 * statistics.median(values) for name, values in seconds.items()},
        "time_ratio": statistics.median(fedad / simclr for simclr, fedad, _ in pairs),
        "time_ratio_with_views": statistics.median((fedad + made) / (simclr + made) for simclr, fedad, made in pairs),
        "teacher_dtype": str(teacher_dtype(config.training.teacher_precision, device)).removeprefix("torch."),
        "student_amp": students["fedad"].amp,
    }


def peak_memory(method: str, config: Any, batch_size: int, device: torch.device) -> int:
    """:func:`peak_bytes` of a method's step."""
    student, x = make_student(method, config, device), random_views(config, batch_size, device)
    return peak_bytes(lambda: student.step(Batch(x), LAMBDA_T if method == "fedad" else 0.0), device)


def measure(image_size: int, batch_size: int, repeats: int, device: torch.device) -> dict[str, Any]:
    """One row of the table."""
    config = default_config()
    config.model.image_size = image_size
    peaks = {method: in_fresh_process(peak_memory, method, config, batch_size, device) for method in METHODS}
    return {
        "image_size": image_size,
        "batch_size": batch_size,
        **measure_time(config, batch_size, repeats, device),
        **{f"{method}_peak_mib": peak / 2**20 for method, peak in peaks.items()},
        "memory_ratio": peaks["fedad"] / peaks["simclr"],
    }


def main() -> None:
    parser = step_parser(__doc__, image_sizes=[96, 224], repeats_on_cpu=7)
    parser.add_argument(
        "--batch-size", type=int, help="images in a step, two views of each (CPU: 32 at 96 px, 8 above)"
    )
    arguments = parser.parse_args()
    device, repeats = start(arguments)
    header = f"{'px':>4} {'N':>4} {'views ms':>9} {'SimCLR ms':>10} {'FedAD ms':>9}"
    print(f"{header} {'time':>7} {'+views':>7} {'memory':>7}  teacher")
    rows = []
    for image_size in arguments.image_size:
        batch_size = arguments.batch_size or (64 if device.type == "cuda" else 32 if image_size <= 96 else 8)
        row = measure(image_size, batch_size, repeats, device)
        rows.append(row)
        print(
            f"{image_size:>4} {batch_size:>4} {row['views_ms']:>9.1f} {row['simclr_ms']:>10.1f} "
            f"{row['fedad_ms']:>9.1f} "
            f"{row['time_ratio']:>6.3f}x {row['time_ratio_with_views']:>6.3f}x {row['memory_ratio']:>6.3f}x  "
            f"{row['teacher_dtype']}, student {'bf16 autocast' if row['student_amp'] else 'fp32'}",
            flush=True,
        )
    write_json(arguments.json, device, rows)


if __name__ == "__main__":
    main()
