"""Formats: how sparse tensors are stored, one a file."""

from .csr import CSR
from .entries import Entries, as_entries
from .format import Format, Packed, Storage
from .layout import Layout, LayoutBuilder, StoredAxis

__all__ = [
    "CSR",
    "Entries",
    "Format",
    "Layout",
    "LayoutBuilder",
    "Packed",
    "Storage",
    "StoredAxis",
    "as_entries",
]
