# SPDX-License-Identifier: Apache-2.0
"""Takes programs over that name another backend: ``INAGG_TAKE_OVER=gloo,nccl``.

One function of torch makes every group: ``distributed_c10d._new_process_group_helper``. `install` replaces it by one
that makes an inagg group if the program names a backend of the list, or none. torch keeps the program's name for the
group, so ``dist.get_backend()`` returns it, and libraries that compare names do what they do for that name.
docs/take-over.md has the rules.

`inagg.registration` imports this module when the variable is set, during ``import torch``. So it imports nothing heavy,
and problems become errors of ``init_process_group``.
"""

import contextlib
import difflib
import functools
import inspect
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from inagg.base_errors import ConfigurationError

if TYPE_CHECKING:
    from inagg.process_group import ProcessGroup

_log = logging.getLogger(__name__)

VARIABLE = "INAGG_TAKE_OVER"
BACKENDS = ("gloo", "nccl")  # what can be taken over

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"  # torch loads backends only if it is 1, the default
_OURS = "inagg"
_DEVICES = frozenset({"cpu", "cuda"})
_NONE = "undefined"  # torch's name for a backend that the program leaves to torch

_BESIDE_NCCL = 'the program made it with "gloo" beside NCCL, for control messages'
_SIDE_PROCESS = "a process that a rank has started made it"


def is_asked_for(environment: Mapping[str, str]) -> bool:
    """Whether `environment` has the variable, or one that looks like it. An empty one counts as not set."""
    return any(value and _resembles(name) for name, value in environment.items())


def install(environment: Mapping[str, str] = os.environ, *, without_job: str = "") -> None:
    """Take over the groups that this program makes from now on.

    without_job: a reason for which gloo does the sums of all of them, also of those that the program makes as "inagg":
    to compare. Empty: they have jobs.

    If that is impossible, because of the variable or of this version of torch, ``init_process_group`` raises
    ConfigurationError from now on: a program must never run over gloo while its user expects inagg.
    """
    from torch.distributed import distributed_c10d as c10d

    try:
        names = _names(environment)
        make_group = c10d._new_process_group_helper
        signature = inspect.signature(make_group)
        if missing := {"backend", "backend_options", "global_ranks_in_group"} - signature.parameters.keys():
            raise AttributeError(f"its _new_process_group_helper has no {', '.join(sorted(missing))}")
    except ConfigurationError as error:
        refuse(str(error))
    except AttributeError as error:
        import torch

        refuse(f"torch {torch.__version__} has no place to do it ({error})")
    else:
        takeover = _TakeOver(c10d, make_group, signature, names, without_job)
        c10d._new_process_group_helper = functools.wraps(make_group)(takeover)


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Groups that are made in the block are those of the backend that they name."""
    from torch.distributed import distributed_c10d as c10d

    taking = c10d._new_process_group_helper
    c10d._new_process_group_helper = getattr(taking, "__wrapped__", taking)
    try:
        yield
    finally:
        c10d._new_process_group_helper = taking


def refuse(problem: str) -> None:
    """Make every ``init_process_group`` of this process raise ConfigurationError."""
    from torch.distributed import distributed_c10d as c10d

    def init_process_group(*_arguments: object, **_settings: object) -> NoReturn:
        raise ConfigurationError(
            f"{VARIABLE} is set, but inagg cannot take over this program: {problem}. Unset it to run without inagg."
        )

    original = c10d.init_process_group
    for module in _modules_with("init_process_group", original):
        module.init_process_group = functools.wraps(original)(init_process_group)  # type: ignore[attr-defined]


def _modules_with(name: str, value: object) -> Iterator[ModuleType]:
    """torch's modules that have a function under its name: some import it by name."""
    for path, module in list(sys.modules.items()):
        if path.startswith("torch.distributed") and vars(module).get(name) is value:
            yield module


def parse_names(text: str) -> frozenset[str]:
    """The backends of a list such as ``"gloo,nccl"``.

    Raises:
        ConfigurationError: one of them cannot be taken over.
    """
    names = frozenset(name.strip().lower() for name in text.split(","))
    if unknown := sorted(names - set(BACKENDS)):
        raise ConfigurationError(
            f"{VARIABLE} must be a list of the backends to take over, of {' and '.join(BACKENDS)} (got {unknown[0]!r})"
        )
    return names


def check_launch(environment: Mapping[str, str], text: str) -> None:
    """Check what a launcher is about to start.

    environment: the program's. text: the backends, as in the variable.

    Raises:
        ConfigurationError: a backend cannot be taken over, or torch would not load inagg.
    """
    parse_names(text)
    if environment.get(_AUTOLOAD, "1") != "1":
        raise ConfigurationError(
            f"{_AUTOLOAD}={environment[_AUTOLOAD]} is set: torch would not load inagg, and the program would run "
            "without it. Unset it."
        )


def _names(environment: Mapping[str, str]) -> frozenset[str]:
    for variable, value in environment.items():
        if value and _resembles(variable) and variable != VARIABLE:
            raise ConfigurationError(f"{variable} is not a setting; did you mean {VARIABLE}?")
    return parse_names(environment[VARIABLE])


def _resembles(variable: str) -> bool:
    return variable.startswith("INAGG_TA") and bool(
        difflib.get_close_matches(variable, [VARIABLE], cutoff=0.85)
    )


class _TakeOver:
    """torch's function that makes a group, with inagg groups in place of those of `names`.

    make_group: torch's function. signature: its signature. without_job: as `install`.
    """

    def __init__(
        self,
        c10d: Any,
        make_group: Any,
        signature: inspect.Signature,
        names: frozenset[str],
        without_job: str,
    ) -> None:
        self._c10d = c10d
        self._make_group = make_group
        self._signature = signature
        self._names = names
        self._without_job = without_job
        self._said: set[str] = set()

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        call = self._signature.bind(*arguments, **settings)
        named = str(call.arguments["backend"]).lower()
        if not self._takes(named):
            return self._make_group(*arguments, **settings)
        from inagg.groups import TakenOver

        taken = TakenOver(
            named=named,
            backend=self._own_name(named),
            options=self._options(named, call.arguments),
            without_job=self._why_no_job(named, call.arguments["global_ranks_in_group"]),
        )
        call.arguments["backend"] = self._c10d.Backend(_OURS)
        call.arguments["backend_options"] = taken
        group, store = self._make_group(*call.args, **call.kwargs)
        if store is not None:  # this rank is a member
            backend = self._c10d.Backend(named)
            self._c10d._world.pg_map[group] = (backend, store)
            self._c10d._world.pg_backend_config[group] = str(self._c10d.BackendConfig(backend))
            self._announce(named, group)
        return group, store

    def _backends(self, named: str) -> dict[str, str]:
        """Device type -> backend, as torch understands the name."""
        return {
            device: str(backend)
            for device, backend in self._c10d.BackendConfig(self._c10d.Backend(named))
            .get_device_backend_map()
            .items()
        }

    def _takes(self, named: str) -> bool:
        """Whether a group of this name becomes inagg's.

        Raises:
            ConfigurationError: the name has a backend of the list and one that inagg cannot replace.
        """
        if named == _NONE:
            chosen = {backend for device, backend in self._backends(named).items() if device in _DEVICES}
            return bool(chosen) and chosen <= set(BACKENDS)
        pairs = [pair.rpartition(":") for pair in named.split(",")]
        backends = {backend for _, _, backend in pairs}
        if self._without_job and backends == {_OURS}:
            return True
        if not backends & self._names or _OURS in backends:
            return False
        devices = {device for device, colon, _ in pairs if colon}
        if backends <= set(BACKENDS) and devices <= _DEVICES:
            return True
        raise ConfigurationError(
            f"{VARIABLE}={','.join(sorted(self._names))}: inagg cannot take over the backend {named!r}. An inagg group "
            f"serves {' and '.join(sorted(_DEVICES))} devices together, in place of {' and '.join(BACKENDS)} only."
        )

    def _own_name(self, named: str) -> str:
        """What torch's own group calls itself: of several backends, NCCL."""
        return "nccl" if "nccl" in self._backends(named).values() else "gloo"

    def _options(self, named: str, arguments: Mapping[str, Any]) -> object:
        """The program's options for the group: inagg's, or none if they are another backend's."""
        given = arguments.get("backend_options")
        if given is None or type(given).__module__.partition(".")[0] == _OURS:
            return given
        if arguments["group_rank"] == 0:
            self._say(f"inagg: pg_options made for {named!r} are not used ({type(given).__qualname__})")
        return None

    def _why_no_job(self, named: str, members: list[int]) -> str:
        """Why the group needs no job, and gloo may do its sums. Empty if it needs one."""
        from inagg.side_processes import started_by_rank

        if self._without_job:
            return self._without_job
        if started_by_rank():
            return _SIDE_PROCESS
        if members and self._c10d.is_initialized():
            world, _ = self._c10d._world.pg_map[self._c10d._get_default_group()]
            if "nccl" in self._backends(str(world)).values() and set(self._backends(named).values()) == {
                "gloo"
            }:
                return _BESIDE_NCCL
        return ""

    def _announce(self, named: str, group: "ProcessGroup") -> None:
        """Say once what is taken over, and once for each reason that a group has no job."""
        rank = self._c10d.get_rank() if self._c10d.is_initialized() else group.rank()
        if rank != 0:
            return
        figures = group.stats()
        if figures["path"] == "inner":
            name = "without a name" if named == _NONE else repr(named)
            self._say(
                f"inagg: took over a group {name}, but gloo does its sums: {figures['reason']} ({VARIABLE})"
            )
            return
        self._say(
            f"inagg: took over this program's groups of {', '.join(sorted(self._names))} and of no name ({VARIABLE}): "
            f"their sums go through inagg (controller {group.options.controller}). dist.get_backend() still returns "
            "the program's names."
        )

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            _log.warning(line)
