"""docs/walkthrough.ipynb: its outputs are committed and are those of a run from top to bottom."""
import json
import re
import shutil

import pytest

PATH = "docs/walkthrough.ipynb"


def code_cells(path=PATH):
    with open(path, encoding="utf-8") as f:
        return [cell for cell in json.load(f)["cells"] if cell["cell_type"] == "code"]


def texts_of(cell):
    return "".join("".join(out.get("text", [])) for out in cell["outputs"])


def test_the_notebook_was_run_from_top_to_bottom_and_names_no_machine():
    cells = code_cells()
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(out["output_type"] == "stream" and out["name"] == "stdout" for cell in cells for out in cell["outputs"])
    assert sum(bool(cell["outputs"]) for cell in cells) >= 12
    with open(PATH, encoding="utf-8") as f:
        assert not re.search(r"/(tmp|home|work|root|Users)/", f.read())


def test_what_the_notebook_says_is_in_its_outputs():
    said = "\n".join(map(texts_of, code_cells()))
    loss, by_hand = (float(re.search(rf"{what} (\d+\.\d+)", said)[1]) for what in ("loss", "by hand"))
    assert loss == by_hand
    sampled = [float(share) for share in re.findall(r"val/sampled (\S+)  val/pass@4", said)]
    assert len(sampled) == 3 and sampled[-1] > sampled[0] + 0.05, "GRPO is seen to help"
    assert float(re.search(r"the sampler's own: (\S+)", said)[1]) < 1e-4


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    shutil.copy(PATH, tmp_path)
    notebook = nbformat.read(tmp_path / "walkthrough.ipynb", 4)
    for cell in notebook.cells:  # what its two runs learn is in the committed outputs: a tenth of the second is enough
        cell.source = re.sub(r"max_iters=80, eval_interval=40", "max_iters=8, eval_interval=4", cell.source)
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": "docs"}}).execute()
    said = [texts_of(cell) for cell in notebook.cells if cell["cell_type"] == "code"]
    before = list(map(texts_of, code_cells()))
    assert len(said) == len(before)
    for now, then in zip(said[2:5], before[2:5], strict=True):  # tokens, masks, the first loss: as on every machine
        assert now.endswith(then)  # a fresh clone says first that it makes the data
