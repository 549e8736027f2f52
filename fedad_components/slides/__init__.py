"""Whole-slide images: tissue, patches, features, and the account of every slide. Imports no FLARE.

Needs the extra ``wsi`` (OpenSlide, a shared library under the LGPL, and h5py).
"""
