"""Cost of a FedAD step against an equally tuned SimCLR step: time and peak memory, interleaved in one run.

    python benchmarks/step_cost.py                          # 96 and 224 px, about 3 minutes on 2 idle cores
    python benchmarks/step_cost.py --device cuda --batch-size 64 --repeats 30 --json step_cost.json

Both steps run the same code (``Student.step``) with the same student, views, precision and optimiser. SimCLR is that
step with lambda_t = gamma = 0: no teacher, no extra terms. "time" compares steps on views that are ready, "+views" adds
the making of the views to both. Steps alternate, and a ratio is the median over neighbouring pairs: a busy machine
slows both. Needs only torch, torchvision and numpy: without pydantic the defaults are read from the exported job.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from fedad_components.fedsd.model import build_extractor, build_head, build_projection  # noqa: E402
from fedad_components.fedsd.teacher import Teacher, teacher_dtype  # noqa: E402
from fedad_components.fedsd.trainer import Student, choose_device  # noqa: E402
from fedad_components.fedsd.views import Views  # noqa: E402

JOB_CONFIG = REPOSITORY / "jobs" / "fedad_job" / "app" / "config" / "config_fed_client.json"
METHODS = ("simclr", "fedad")
LAMBDA_T = 0.5
WARM_UP = 2


def namespace(value: Any) -> Any:
    """JSON objects as attribute objects."""
    if isinstance(value, dict):
        return SimpleNamespace(**{key: namespace(item) for key, item in value.items()})
    return value


def default_config() -> Any:
    """The one copy of the defaults: from the configuration's classes, or from the job that was exported from them."""
    try:
        from fedad_components.config import FedADConfig
    except ModuleNotFoundError:
        executors = json.loads(JOB_CONFIG.read_text(encoding="utf-8"))["executors"]
        return namespace(executors[0]["executor"]["args"]["config"])
    return namespace(FedADConfig().to_json())


def make_student(method: str, config: Any, device: torch.device) -> Student:
    """The student of one method, ready to step."""
    config = copy.deepcopy(config)
    extractor = build_extractor(config.model).to(device).to(memory_format=torch.channels_last)
    head = build_head(config.seed, "benchmark").to(device)
    if method == "simclr":
        config.loss.gamma = 0.0
        return Student(extractor, head, None, config, device)
    teacher = Teacher(extractor, build_projection(config.seed), config.training, device)
    return Student(extractor, head, teacher, config, device)


def synchronised_time(device: torch.device) -> float:
    """Seconds, after all work queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def random_images(config: Any, batch_size: int, device: torch.device) -> torch.Tensor:
    """``(N, S, S, 3)`` uint8; the cost does not depend on the content."""
    side = round(config.model.image_size * 8 / 7)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (batch_size, side, side, 3), dtype=torch.uint8, generator=generator).to(device)


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
            students[method].step(x, LAMBDA_T if method == "fedad" else 0.0)
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


def random_views(config: Any, batch_size: int, device: torch.device) -> torch.Tensor:
    """``(2N, 3, P, P)``, in the views' layout."""
    side = config.model.image_size
    return torch.randn(2 * batch_size, 3, side, side, device=device).contiguous(memory_format=torch.channels_last)


def peak_bytes(step: Callable[[], Any], device: torch.device) -> int:
    """Bytes at the peak of two steps (the first creates the optimiser's state).

    CUDA: the allocator's own count. CPU: the largest resident set of this process, which must be a fresh one, since
    that number never falls; it includes the interpreter and PyTorch, as the memory that a site has to have does.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    for _ in range(2):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak_memory(method: str, config: Any, batch_size: int, device: torch.device) -> int:
    """:func:`peak_bytes` of a method's step."""
    student, x = make_student(method, config, device), random_views(config, batch_size, device)
    return peak_bytes(lambda: student.step(x, LAMBDA_T if method == "fedad" else 0.0), device)


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's result, from a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image-size", type=int, nargs="+", default=[96, 224], help="sides of a view in pixels")
    parser.add_argument(
        "--batch-size", type=int, help="images in a step, two views of each (CPU: 32 at 96 px, 8 above)"
    )
    parser.add_argument("--repeats", type=int, help="timed pairs of steps (CPU: 7, CUDA: 30)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: PyTorch's choice")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    arguments = parser.parse_args()

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device = choose_device(arguments.device)
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}; torch {torch.__version__}")
    header = f"{'px':>4} {'N':>4} {'views ms':>9} {'SimCLR ms':>10} {'FedAD ms':>9}"
    print(f"{header} {'time':>7} {'+views':>7} {'memory':>7}  teacher")
    rows = []
    for image_size in arguments.image_size:
        batch_size = arguments.batch_size or (64 if on_gpu else 32 if image_size <= 96 else 8)
        row = measure(image_size, batch_size, arguments.repeats or (30 if on_gpu else 7), device)
        rows.append(row)
        print(
            f"{image_size:>4} {batch_size:>4} {row['views_ms']:>9.1f} {row['simclr_ms']:>10.1f} "
            f"{row['fedad_ms']:>9.1f} "
            f"{row['time_ratio']:>6.3f}x {row['time_ratio_with_views']:>6.3f}x {row['memory_ratio']:>6.3f}x  "
            f"{row['teacher_dtype']}, student {'bf16 autocast' if row['student_amp'] else 'fp32'}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"device": name, "torch": torch.__version__, "rows": rows}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
