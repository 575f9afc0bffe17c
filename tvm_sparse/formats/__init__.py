"""Formats: how sparse tensors are stored, one a file."""

from .bsr import BSR
from .bucket import Bucket, EmptyRows, LongBucket
from .cache import choose_column_parts
from .check import check_format
from .column_parts import ColumnParts
from .composition import Composition, PackedComposition
from .coo import COO
from .csc import CSC
from .csf import CSF
from .csr import CSR
from .dbsr import DBSR
from .dcsr import DCSR
from .dia import DIA
from .ell import ELL
from .entries import Entries, as_entries
from .format import Format, Packed, Storage
from .hyb import Hyb
from .layout import Layout, LayoutBuilder, StoredAxis
from .pieces import FurtherPieces, Pieces
from .ragged import Ragged
from .relational_hyb import RelationalHyb
from .row_list import RowList
from .sr_bcrs import SRBCRS

__all__ = [
    "BSR",
    "COO",
    "CSC",
    "CSF",
    "CSR",
    "DBSR",
    "DCSR",
    "DIA",
    "ELL",
    "SRBCRS",
    "Bucket",
    "ColumnParts",
    "Composition",
    "EmptyRows",
    "Entries",
    "Format",
    "FurtherPieces",
    "Hyb",
    "Layout",
    "LayoutBuilder",
    "LongBucket",
    "Packed",
    "PackedComposition",
    "Pieces",
    "Ragged",
    "RelationalHyb",
    "RowList",
    "Storage",
    "StoredAxis",
    "as_entries",
    "check_format",
    "choose_column_parts",
]
