"""The stock schedule that a sparse schedule lowers to."""

import pytest
import tvm

from tvm_sparse import SparseSchedule, schedules
from tvm_sparse.formats import BSR, CSR


def test_it_works_on_the_only_function():
    schedule = SparseSchedule(schedules.spmm.program())
    schedule.decompose_format("spmm", "A", {"blocks": BSR(2, 2), "rest": CSR()})
    lowered = schedule.lower()
    (row,) = lowered.get_loops(lowered.get_sblock("spmm_rest_0"))
    lowered.parallel(row)
    assert "T.parallel" in lowered.mod["spmm"].script()


def test_of_several_functions_the_user_chooses():
    programs = [schedules.spmm.program(), schedules.spmv.program()]
    lowered = SparseSchedule(tvm.IRModule({func.name: func for func in programs})).lower()
    with pytest.raises(ValueError, match="does not know which function"):
        lowered.get_sblock("spmv_0")
    lowered.work_on("spmv")
    lowered.get_sblock("spmv_0")
