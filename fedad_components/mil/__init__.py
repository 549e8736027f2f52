"""HistoFL: whole slides as bags of patches, classified or ranked by survival, trained in a federation.

Lu et al., "Federated learning for computational pathology on gigapixel whole slide images", Medical Image Analysis
2022. ``model`` and ``losses`` are plain PyTorch; ``bags`` and ``splits`` say what a site trains on; ``counts`` holds
what sites may add up, ``bins`` and the metrics are computed from it or, on one site's own bags, directly. No FLARE.
"""
