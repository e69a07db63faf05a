"""The programs of examples/ learn what they are to learn, several of them at a time on one switch."""

import sys
from pathlib import Path

import pytest

from inagg_testbed.links import LinkSpec
from inagg_testbed.testbed import open_testbed

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.netns
def test_two_jobs_learn_side_by_side(tmp_path: Path) -> None:
    with open_testbed(hosts=2, link=LinkSpec.parse("unshaped"), results_root=tmp_path) as testbed:
        digits = testbed.launch([sys.executable, str(EXAMPLES / "digits.py"), "--epochs", "3"], name="digits")
        gpt = testbed.launch([sys.executable, str(EXAMPLES / "gpt.py"), "--steps", "20"], name="gpt")
        for group in (digits, gpt):
            group.follow(lambda _rank, _event: None, timeout_s=120, watch=testbed.services)
        logs = {
            group: (testbed.results / f"{group}-rank0.log").read_text().splitlines()
            for group in ("digits", "gpt")
        }
    last_epoch = next(line for line in logs["digits"] if line.startswith("epoch 3: "))
    assert float(last_epoch.split()[2].rstrip("%")) > 80
    loss = next(line for line in logs["gpt"] if line.startswith("step 20: "))
    assert float(loss.split()[2]) < 3.2  # 5.5 is guessing, 3.26 the frequencies of bytes alone
