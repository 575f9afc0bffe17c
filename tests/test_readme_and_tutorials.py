"""The README's Python and the tutorials run as they stand."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("path", sorted((ROOT / "tutorials").glob("*.py")), ids=lambda p: p.stem)
def test_tutorials_run(path, capsys, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


def test_the_first_kernel_of_the_readme_runs(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.split("## A first kernel")[1].split("## Its stages")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    program = tmp_path / "first_kernel.py"  # the parser reads the source file
    program.write_text(code, encoding="utf-8")
    names = runpy.run_path(str(program))
    assert names["result"].shape == (1000, 32)
