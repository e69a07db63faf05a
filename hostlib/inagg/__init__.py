"""inagg: gradients summed in a programmable switch, as a torch.distributed backend.

    import inagg
    torch.distributed.init_process_group("inagg")

Public names: `Options`, `ProcessGroup`, `stats`, and the errors of `inagg.errors`.
"""

from inagg.errors import InaggError
from inagg.options import Options
from inagg.process_group import ProcessGroup, register, stats

__all__ = ["InaggError", "Options", "ProcessGroup", "stats"]

register()
