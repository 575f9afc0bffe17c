"""Which dtypes the operators take and in what they accumulate."""

from __future__ import annotations

FLOATS = ("float16", "bfloat16", "float32", "float64")
NARROW_INTEGERS = ("int8", "uint8", "bool")
INTEGERS = (*NARROW_INTEGERS, "int16", "int32", "int64")


def result_dtype(dtype: str, out_dtype: str | None, operator: str) -> str:
    """Return the dtype of a result: 8-bit integers and bool accumulate in int32, others as they are.

    Half precision results are accumulated in float32 by the compiler and rounded once.
    """
    if dtype not in (*FLOATS, *INTEGERS):
        raise ValueError(
            f"{operator}: expected dtype one of {[*FLOATS, *INTEGERS]}, found {dtype!r}"
        )
    if out_dtype is not None:
        if out_dtype not in (*FLOATS, *INTEGERS) or out_dtype == "bool":
            numbers = [name for name in (*FLOATS, *INTEGERS) if name != "bool"]
            raise ValueError(
                f"{operator}: expected out_dtype one of {numbers}, found {out_dtype!r}"
            )
        return out_dtype
    return "int32" if dtype in (*NARROW_INTEGERS, "int16") else dtype


def check_index_dtype(index_dtype: str, operator: str) -> str:
    """Refuse index dtypes other than int32 and int64."""
    if index_dtype not in ("int32", "int64"):
        raise ValueError(f"{operator}: expected index_dtype int32 or int64, found {index_dtype!r}")
    return index_dtype
