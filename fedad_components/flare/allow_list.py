"""The exact classes that a site's FLARE may build, taken from the classes themselves, so that the list cannot drift."""

from __future__ import annotations

from fedad_components.flare.aggregator import FedADAggregator
from fedad_components.flare.channels import JobChannels
from fedad_components.flare.controller import FedADController
from fedad_components.flare.egress import StrictEgress
from fedad_components.flare.executor import FedADExecutor
from fedad_components.flare.ingress import StrictIngress
from fedad_components.flare.persistor import FedADPersistor
from fedad_components.flare.shareable_generator import FedADShareableGenerator


def class_path(component: type) -> str:
    """``module.Class``, as FLARE's JSON files spell it."""
    return f"{component.__module__}.{component.__qualname__}"


CLASS_ALLOW_LIST: tuple[str, ...] = tuple(
    class_path(component)
    for component in (
        FedADAggregator,
        FedADController,
        FedADExecutor,
        FedADPersistor,
        FedADShareableGenerator,
        JobChannels,
        StrictEgress,
        StrictIngress,
    )
)
