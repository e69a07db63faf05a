# SPDX-License-Identifier: Apache-2.0
"""Ends programs in every state of a group and in every way, while the machine is busy: python exit_hunt.py [ROUNDS].

Prints for each case how many of the runs did not end as they should, and exits with 1 if any did not.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from test_exit import RANKS, as_expected, cases, end

from inagg_testbed.links import LinkSpec
from inagg_testbed.testbed import open_testbed

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
wrong = 0
burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
try:
    folder = Path(tempfile.mkdtemp(prefix="inagg-exit-"))
    with open_testbed(hosts=RANKS, link=LinkSpec.parse("unshaped"), results_root=folder) as testbed:
        for number, case in enumerate(cases()):
            found = [end(testbed, f"{number}-{one}", *case) for one in range(rounds)]
            bad = [statuses for statuses in found if not as_expected(case[1], statuses)]
            wrong += len(bad)
            print(*case, f"{len(bad)} of {rounds} wrong", bad or "", flush=True)
finally:
    for burner in burners:
        burner.kill()
        burner.wait()
print(f"{wrong} wrong; logs are in {folder}")
sys.exit(wrong > 0)
