# SPDX-License-Identifier: Apache-2.0
"""`import torch` registers the backend, imports nothing of inagg, and cannot fail because of inagg."""

import subprocess
import sys

from tests.hostlib.gloo_output import without_gloo


def python(program: str, **environment: str) -> str:
    """What `program` prints in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return without_gloo(done.stdout)


def test_importing_torch_registers_the_backend_and_imports_nothing_else() -> None:
    seen = python(
        "import sys, torch\n"
        "print('INAGG' in torch.distributed.Backend._plugins,"
        " sorted(name for name in sys.modules if name.split('.')[0] in ('inagg', 'pydantic', 'httpx')))"
    )
    assert seen == "True ['inagg', 'inagg.registration']"


def test_a_broken_installation_is_noticed_by_those_alone_who_use_it() -> None:
    seen = python(
        "import sys; sys.modules['pydantic'] = None\n"
        "import torch, torch.distributed as dist\n"
        "print(torch.ones(2).sum().item())\n"
        "try: dist.init_process_group('inagg', store=dist.HashStore(), rank=0, world_size=1)\n"
        "except ImportError as error: print('pydantic' in str(error))"
    )
    assert seen.split() == ["2.0", "True"]


def test_without_autoload_an_import_registers_it() -> None:
    seen = python(
        "import torch; known = torch.distributed.Backend._plugins\n"
        "before = 'INAGG' in known; import inagg; print(before, 'INAGG' in known)",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert seen == "False True"


def test_importing_inagg_first_registers_it_when_torch_is_imported() -> None:
    seen = python(
        "import sys, inagg; before = 'torch' in sys.modules\n"
        "import torch; print(before, 'INAGG' in torch.distributed.Backend._plugins)"
    )
    assert seen == "False True"


def test_without_a_gpu_the_backend_serves_the_cpu_only() -> None:
    # A torch with CUDA asks at the first group, because the question would start CUDA during the import.
    seen = python(
        "import torch, torch.distributed as dist\n"
        "torch.cuda.is_available = lambda: False\n"
        "devices = dist.Backend.backend_capability\n"
        "print(devices['inagg'] == (['cpu', 'cuda'] if torch.backends.cuda.is_built() else ['cpu']))\n"
        "try: dist.init_process_group('inagg', store=dist.HashStore(), rank=0, world_size=1)\n"
        "except Exception: pass\n"
        "print(devices['inagg'], dist.BackendConfig(dist.Backend('inagg')))"
    )
    assert seen.splitlines() == ["True", "['cpu'] cpu:inagg"]


def test_a_server_needs_no_torch() -> None:
    assert python("import sys, inagg_server.cli; print('torch' in sys.modules)") == "False"


def test_monitored_barrier_of_other_groups_is_torchs_own() -> None:
    seen = python(
        "import sys, torch.distributed as dist\n"
        "from torch.distributed import monitored_barrier\n"
        "assert monitored_barrier is dist.monitored_barrier is dist.distributed_c10d.monitored_barrier\n"
        "try: monitored_barrier()\n"
        "except ValueError as error: print(error)\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "monitored_barrier(wait_all_ranks=True)\n"
        "dist.destroy_process_group()\n"
        "import torch.testing._internal.distributed.fake_pg\n"
        "dist.init_process_group('fake', store=dist.HashStore(), rank=0, world_size=1)\n"
        "try: monitored_barrier()\n"
        "except (ValueError, RuntimeError) as error: print('GLOO' in str(error))\n"
        "print([name for name in sys.modules if name.startswith('inagg.')])"
    )
    assert seen.splitlines() == [
        "Default process group has not been initialized, please make sure to call init_process_group.",
        "True",  # a RuntimeError since torch 2.14
        "['inagg.registration']",
    ]
