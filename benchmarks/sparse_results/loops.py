"""Loops for tensors with sparse results as TACO with workspaces would generate them, compiled by numba.

Tensors are dense in the first level and compressed in the others: ``posN`` says where the coordinates
``crdN`` of level ``N`` begin under each entry of the level before. ``spans`` are the sizes of the
dimensions inside a row of the result. A row is a coordinate of the first dimension, or an entry of the
first two levels where both are dimensions of the result. Results take two phases: a function counts the
entries of each row, another fills them in. Where terms scatter, a row has a dense workspace of values and
flags with the list of places in use, which is sorted. Functions take a stretch of rows, so that threads
can share them.
"""

from __future__ import annotations

import numba
import numpy as np

__all__ = ["LOOPS"]

_compiled = numba.njit(nogil=True, error_model="numpy", cache=True)


@_compiled
def _note(place, used, places, held):
    """Add a place to those in use; return how many they are."""
    if not used[place]:
        used[place] = True
        places[held] = place
        held += 1
    return held


@_compiled
def _clear(used, places, held):
    for n in range(held):
        used[places[n]] = False


@_compiled
def _add(place, value, values, used, places, held):
    """Add a value to the workspace; return how many places are in use."""
    if used[place]:
        values[place] += value
    else:
        used[place] = True
        values[place] = value
        places[held] = place
        held += 1
    return held


@_compiled
def _sort_short(places, held):
    """Sort by insertion, which is faster than a call of the library for a few places."""
    for n in range(1, held):
        place, at = places[n], n
        while at > 0 and places[at - 1] > place:
            places[at] = places[at - 1]
            at -= 1
        places[at] = place


@_compiled
def _drain(values, used, places, held, crd, out, slot):
    """Write out a row in order and empty the workspace."""
    if held <= 32:
        _sort_short(places, held)
    else:
        places[:held].sort()
    for n in range(held):
        place = places[n]
        crd[slot + n] = place
        out[slot + n] = values[place]
        used[place] = False


# MTTKRP: A[i, j] = B[i, k, l] C[k, j] D[l, j]; rows of C and D are merged


@_compiled
def mttkrp_count(begin, end, counts, spans, b, c, d):
    """Count the entries of each row of ``A``."""
    (pos1, crd1, pos2, crd2, _), (c_pos, c_crd, _), (d_pos, d_crd, _) = b, c, d
    used, places = np.zeros(spans[0], np.bool_), np.empty(spans[0], np.int32)
    for i in range(begin, end):
        held = 0
        for p in range(pos1[i], pos1[i + 1]):
            k = crd1[p]
            for q in range(pos2[p], pos2[p + 1]):
                l = crd2[q]
                x, y = c_pos[k], d_pos[l]
                while x < c_pos[k + 1] and y < d_pos[l + 1]:
                    j, other = c_crd[x], d_crd[y]
                    if j == other:
                        held = _note(j, used, places, held)
                    x += j <= other
                    y += other <= j
        counts[i] = held
        _clear(used, places, held)


@_compiled
def mttkrp_fill(begin, end, pos, crd, out, spans, b, c, d):
    """Fill in the entries of each row of ``A``."""
    (pos1, crd1, pos2, crd2, vals), (c_pos, c_crd, c_vals), (d_pos, d_crd, d_vals) = b, c, d
    values = np.empty(spans[0], out.dtype)
    used, places = np.zeros(spans[0], np.bool_), np.empty(spans[0], np.int32)
    for i in range(begin, end):
        held = 0
        for p in range(pos1[i], pos1[i + 1]):
            k = crd1[p]
            for q in range(pos2[p], pos2[p + 1]):
                l = crd2[q]
                x, y = c_pos[k], d_pos[l]
                while x < c_pos[k + 1] and y < d_pos[l + 1]:
                    j, other = c_crd[x], d_crd[y]
                    if j == other:
                        value = vals[q] * c_vals[x] * d_vals[y]
                        held = _add(j, value, values, used, places, held)
                    x += j <= other
                    y += other <= j
        _drain(values, used, places, held, crd, out, pos[i])


# TTM: A[i, j, l] = B[i, j, k] C[k, l]; a row is an entry i, j


@_compiled
def ttm_count(begin, end, counts, spans, b, c):
    """Count the entries of each row of ``A``."""
    (_, _, pos2, crd2, _), (c_pos, c_crd, _) = b, c
    used, places = np.zeros(spans[0], np.bool_), np.empty(spans[0], np.int32)
    for p in range(begin, end):
        held = 0
        for q in range(pos2[p], pos2[p + 1]):
            for x in range(c_pos[crd2[q]], c_pos[crd2[q] + 1]):
                held = _note(c_crd[x], used, places, held)
        counts[p] = held
        _clear(used, places, held)


@_compiled
def ttm_fill(begin, end, pos, crd, out, spans, b, c):
    """Fill in the entries of each row of ``A``."""
    (_, _, pos2, crd2, vals), (c_pos, c_crd, c_vals) = b, c
    values = np.empty(spans[0], out.dtype)
    used, places = np.zeros(spans[0], np.bool_), np.empty(spans[0], np.int32)
    for p in range(begin, end):
        held = 0
        for q in range(pos2[p], pos2[p + 1]):
            for x in range(c_pos[crd2[q]], c_pos[crd2[q] + 1]):
                held = _add(c_crd[x], vals[q] * c_vals[x], values, used, places, held)
        _drain(values, used, places, held, crd, out, pos[p])


# TTV: A[i, j] = B[i, j, k] c[k]; the vector is dense with flags, entries come in order


@_compiled
def ttv_count(begin, end, counts, spans, b, c):
    """Count the entries of each row of ``A``."""
    (pos1, _, pos2, crd2, _), (stored, _) = b, c
    for i in range(begin, end):
        held = 0
        for p in range(pos1[i], pos1[i + 1]):
            for q in range(pos2[p], pos2[p + 1]):
                if stored[crd2[q]]:
                    held += 1
                    break
        counts[i] = held


@_compiled
def ttv_fill(begin, end, pos, crd, out, spans, b, c):
    """Fill in the entries of each row of ``A``."""
    (pos1, crd1, pos2, crd2, vals), (stored, c_vals) = b, c
    for i in range(begin, end):
        slot = pos[i]
        for p in range(pos1[i], pos1[i + 1]):
            total, found = out.dtype.type(0), False
            for q in range(pos2[p], pos2[p + 1]):
                if stored[crd2[q]]:
                    total += vals[q] * c_vals[crd2[q]]
                    found = True
            if found:
                crd[slot], out[slot] = crd1[p], total
                slot += 1


# Contraction of one dimension: A[i, j, l, m] = B[i, j, k] C[k, l, m]; a row is an entry i, j, its places
# are l, m side by side


@_compiled
def contract1_count(begin, end, counts, spans, b, c):
    """Count the entries of each row of ``A``."""
    (_, _, pos2, crd2, _), (c_pos1, c_crd1, c_pos2, c_crd2, _) = b, c
    size = spans[0] * spans[1]
    used, places = np.zeros(size, np.bool_), np.empty(size, np.int64)
    for p in range(begin, end):
        held = 0
        for q in range(pos2[p], pos2[p + 1]):
            k = crd2[q]
            for x in range(c_pos1[k], c_pos1[k + 1]):
                base = c_crd1[x] * np.int64(spans[1])
                for y in range(c_pos2[x], c_pos2[x + 1]):
                    held = _note(base + c_crd2[y], used, places, held)
        counts[p] = held
        _clear(used, places, held)


@_compiled
def contract1_fill(begin, end, pos, crd, out, spans, b, c):
    """Fill in the entries of each row of ``A``."""
    (_, _, pos2, crd2, vals), (c_pos1, c_crd1, c_pos2, c_crd2, c_vals) = b, c
    size = spans[0] * spans[1]
    values = np.empty(size, out.dtype)
    used, places = np.zeros(size, np.bool_), np.empty(size, np.int64)
    for p in range(begin, end):
        held = 0
        for q in range(pos2[p], pos2[p + 1]):
            k = crd2[q]
            for x in range(c_pos1[k], c_pos1[k + 1]):
                base = c_crd1[x] * np.int64(spans[1])
                for y in range(c_pos2[x], c_pos2[x + 1]):
                    value = vals[q] * c_vals[y]
                    held = _add(base + c_crd2[y], value, values, used, places, held)
        _drain(values, used, places, held, crd, out, pos[p])


# Contraction of two dimensions: A[i, l] = B[i, j, k] C[j, k, l]; coordinates k are searched under j


@_compiled
def _search(crd, begin, end, wanted):
    """Return the position of a coordinate, or of the first after it."""
    while begin < end:
        middle = (begin + end) >> 1
        if crd[middle] < wanted:
            begin = middle + 1
        else:
            end = middle
    return begin


@_compiled
def contract2_count(begin, end, counts, spans, b, c):
    """Count the entries of each row of ``A``."""
    (pos1, crd1, pos2, crd2, _), (c_pos1, c_crd1, c_pos2, c_crd2, _) = b, c
    used, places = np.zeros(spans[0], np.bool_), np.empty(spans[0], np.int32)
    for i in range(begin, end):
        held = 0
        for p in range(pos1[i], pos1[i + 1]):
            x, last = c_pos1[crd1[p]], c_pos1[crd1[p] + 1]
            for q in range(pos2[p], pos2[p + 1]):
                x = _search(c_crd1, x, last, crd2[q])
                if x == last:
                    break
                if c_crd1[x] == crd2[q]:
                    for y in range(c_pos2[x], c_pos2[x + 1]):
                        held = _note(c_crd2[y], used, places, held)
        counts[i] = held
        _clear(used, places, held)


@_compiled
def contract2_fill(begin, end, pos, crd, out, spans, b, c):
    """Fill in the entries of each row of ``A``."""
    (pos1, crd1, pos2, crd2, vals), (c_pos1, c_crd1, c_pos2, c_crd2, c_vals) = b, c
    values = np.empty(spans[0], out.dtype)
    used, places = np.zeros(spans[0], np.bool_), np.empty(spans[0], np.int32)
    for i in range(begin, end):
        held = 0
        for p in range(pos1[i], pos1[i + 1]):
            x, last = c_pos1[crd1[p]], c_pos1[crd1[p] + 1]
            for q in range(pos2[p], pos2[p + 1]):
                x = _search(c_crd1, x, last, crd2[q])
                if x == last:
                    break
                if c_crd1[x] == crd2[q]:
                    for y in range(c_pos2[x], c_pos2[x + 1]):
                        value = vals[q] * c_vals[y]
                        held = _add(c_crd2[y], value, values, used, places, held)
        _drain(values, used, places, held, crd, out, pos[i])


# Elementwise product: A[i, j, k] = B[i, j, k] C[i, j, k]; both trees are merged level by level, places of
# a row are j, k side by side


@_compiled
def multiply_count(begin, end, counts, spans, b, c):
    """Count the entries of each row of ``A``."""
    (pos1, crd1, pos2, crd2, _), (c_pos1, c_crd1, c_pos2, c_crd2, _) = b, c
    for i in range(begin, end):
        held, p, x = 0, pos1[i], c_pos1[i]
        while p < pos1[i + 1] and x < c_pos1[i + 1]:
            j, other = crd1[p], c_crd1[x]
            if j == other:
                q, y = pos2[p], c_pos2[x]
                while q < pos2[p + 1] and y < c_pos2[x + 1]:
                    k, third = crd2[q], c_crd2[y]
                    held += k == third
                    q += k <= third
                    y += third <= k
            p += j <= other
            x += other <= j
        counts[i] = held


@_compiled
def multiply_fill(begin, end, pos, crd, out, spans, b, c):
    """Fill in the entries of each row of ``A``."""
    (pos1, crd1, pos2, crd2, vals), (c_pos1, c_crd1, c_pos2, c_crd2, c_vals) = b, c
    for i in range(begin, end):
        slot, p, x = pos[i], pos1[i], c_pos1[i]
        while p < pos1[i + 1] and x < c_pos1[i + 1]:
            j, other = crd1[p], c_crd1[x]
            if j == other:
                q, y = pos2[p], c_pos2[x]
                while q < pos2[p + 1] and y < c_pos2[x + 1]:
                    k, third = crd2[q], c_crd2[y]
                    if k == third:
                        crd[slot] = j * np.int64(spans[1]) + k
                        out[slot] = vals[q] * c_vals[y]
                        slot += 1
                    q += k <= third
                    y += third <= k
            p += j <= other
            x += other <= j


#: By the name of a kernel: count, fill, and the type of places.
LOOPS = {
    "mttkrp": (mttkrp_count, mttkrp_fill, np.int32),
    "ttm": (ttm_count, ttm_fill, np.int32),
    "ttv": (ttv_count, ttv_fill, np.int32),
    "contract1": (contract1_count, contract1_fill, np.int64),
    "contract2": (contract2_count, contract2_fill, np.int32),
    "multiply": (multiply_count, multiply_fill, np.int64),
}
