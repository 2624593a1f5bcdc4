"""All pairs of variants that a run may use together: tests/plugging.py says how they are compared."""
import json
import subprocess
import sys

import plugging
import pytest


@pytest.mark.slow
def test_no_order_of_imports_changes_what_two_variants_compute_and_each_of_them_has_its_effect():
    orders = [subprocess.Popen([sys.executable, plugging.__file__, order], stdout=subprocess.PIPE, text=True)
              for order in ("forward", "backward")]  # fmt: skip
    forward, backward = (json.loads(order.communicate()[0]) for order in orders)
    allowed = 0
    for pair, found in forward.items():
        if found is None:
            continue
        whole, *without = found
        assert not whole.startswith("failed"), f"{pair}: {whole}"
        assert [whole] == backward[pair], pair
        if whole.startswith("refused: "):
            assert len(whole) > 30, pair
        else:
            allowed += 1
            assert whole not in without, f"{pair}: one of them has no effect"
    assert allowed > 100
