"""The exact classes that FLARE may build, taken from the classes themselves, so that the lists cannot drift."""

from __future__ import annotations

from fedad_components.flare.aggregator import FedADAggregator
from fedad_components.flare.audit import JobAudit
from fedad_components.flare.channels import JobChannels
from fedad_components.flare.controller import FedADController
from fedad_components.flare.egress import StrictEgress
from fedad_components.flare.executor import FedADExecutor
from fedad_components.flare.ingress import StrictIngress
from fedad_components.flare.persistor import FedADPersistor
from fedad_components.flare.shareable_generator import FedADShareableGenerator
from fedad_components.flare.tracking import RECEIVERS, RoundTracker


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
        JobAudit,
        JobChannels,
        StrictEgress,
        StrictIngress,
    )
)
"""At a site, and at the server."""

SERVER_CLASS_ALLOW_LIST: tuple[str, ...] = (*CLASS_ALLOW_LIST, class_path(RoundTracker), *RECEIVERS.values())
"""At the server alone: what writes a round's numbers to TensorBoard or MLflow besides."""
