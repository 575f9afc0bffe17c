"""The README's Python and the tutorials run as they stand."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from tvm_sparse.runtime import cuda_compiler

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("path", sorted((ROOT / "tutorials").glob("*.py")), ids=lambda p: p.stem)
def test_tutorials_run(path, capsys, monkeypatch, tmp_path):
    if "cuda" in path.stem and not cuda_compiler.supported_architectures():
        pytest.skip("needs a compiler of CUDA: NVRTC or nvcc")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(sys, "argv", [str(path), str(tmp_path)])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


def test_the_python_of_the_readme_runs_in_order(tmp_path, monkeypatch):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    code = code.replace("max_trials=32", "max_trials=2").replace("max_trials=8", "max_trials=2")
    program = tmp_path / "readme.py"  # the parser reads the source file
    program.write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(program))
    assert names["result"].shape == (1000, 32)
    assert names["mine"].failures == 0
    assert (tmp_path / "spmm.so").is_file()
