"""``python -m fedad_components.worker``: started by :class:`~fedad_components.worker.process.TrainingProcess`."""

from fedad_components.worker.child import main

main()
