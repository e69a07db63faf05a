# SPDX-License-Identifier: Apache-2.0
"""The options of a process group: one schema for all sources of settings.

Each setting is taken from the first source that has it: ``init_process_group(..., pg_options=inagg.Options(...))``, the
environment (``INAGG_SLOTS`` for `slots`), the file ``inagg.toml`` in the working directory (or the file that
``INAGG_CONFIG`` names), the default. ``python -m inagg.options`` prints the table of docs/options.md.
"""

import difflib
import os
import socket
import sys
import tomllib
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
)

from inagg.base_errors import ConfigurationError
from inagg_contract.aggregation import COLOCATED, LEASED, AskedAggregation, ServerKind
from inagg_contract.documents import (
    HostName,
    JobClassName,
    JobName,
    PathLoss,
    RackName,
)
from inagg_contract.lanes import LaneWidth
from inagg_contract.ranks import host_name, job_name
from inagg_contract.settings import refuse_truth_value
from inagg_contract.tokens import is_token

CONFIG_FILE = "inagg.toml"
CONFIG_VARIABLE = "INAGG_CONFIG"

_PREFIX = "INAGG_"
_SECRET_SETTING = "controller_token"
_TOKEN_SETTINGS = {_SECRET_SETTING, "controller_token_file"}
_MAX_CPU = 8191  # NR_CPUS of the largest Linux kernels, less one


def _number(value: object) -> object:
    """Convert text, because a Literal of numbers does not accept the environment's text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


LaneBits = Annotated[LaneWidth, BeforeValidator(_number)]


def parse_cpus(text: str) -> frozenset[int]:
    """The processors of a list such as ``"0,4-7"``.

    Raises:
        ValueError: the text is not such a list.
    """
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise ValueError('must be a list of processors such as "0,4-7"')
        if not int(first) <= int(last or first) <= _MAX_CPU:
            raise ValueError(f"processors have numbers from 0 to {_MAX_CPU}, and ranges go up")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _list_of_cpus(text: str) -> str:
    parse_cpus(text)
    return text


def _one_cpu(value: object) -> object:
    """Accept a single processor as a number."""
    return str(value) if isinstance(value, int) else value


def _url(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
    except ValueError:  # of the port, or of brackets
        valid = False
    if not valid or any(map(str.isspace, text)):
        raise ValueError("must be a URL such as http://10.0.0.254:9560")
    return text


def _token(secret: SecretStr | None) -> SecretStr | None:
    if secret is not None and not is_token(secret.get_secret_value()):
        raise ValueError("must be a token as the operator gives it, of letters, digits and ._~+/-")
    return secret


def _words(value: object) -> object:
    """Accept text such as "same,servers" for a list."""
    return tuple(word.strip() for word in value.split(",")) if isinstance(value, str) else value


def _once_each(values: tuple[PathLoss, ...]) -> tuple[PathLoss, ...]:
    if len(set(values)) < len(values):
        raise ValueError("must name each once")
    return values


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError("must be a power of two")
    return value


class Options(BaseModel):
    """Options of one process group. `resolve` adds those of the environment and of inagg.toml, and the defaults.

    docs/options.md describes the fields.

    Raises:
        ConfigurationError: a value is wrong, or a name is unknown (also a ``ValueError``, as with pydantic).
    """

    # The errors of pydantic show no values: one may be a token.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    # Whether CPU tensors are processed like CUDA tensors: sums with three more threads, collectives of gloo through
    # copies. For tests without a GPU: it is slower. Ranks may differ in it; results do not change.
    stage_cpu: ClassVar[bool] = False

    controller: Annotated[
        str | None,
        Field(description="URL of the controller, such as `http://10.0.0.254:9560`"),
        AfterValidator(_url),
    ] = None
    controller_ca: Annotated[
        Path | None,
        Field(
            description="file with the certificate of the authority that signed the controller's (PEM), for an `https` "
            "URL; by default, the authorities that the system trusts, or those of `SSL_CERT_FILE`"
        ),
    ] = None
    controller_token: Annotated[
        SecretStr | None,
        Field(
            description="token of the tenant whose job it is, for a controller that has tenants (`--tenants`). No "
            "message, log or figure of inagg shows it. That of rank 0 counts"
        ),
        AfterValidator(_token),
    ] = None
    controller_token_file: Annotated[
        Path | None,
        Field(
            description="file with the token, instead of `controller_token`; read whenever a job is created. That of "
            "rank 0 counts"
        ),
    ] = None
    lane_bits: Annotated[
        LaneBits,
        Field(description="bits of an element on the wire: 32, 16 or 8; the same on all ranks"),
    ] = 32
    half_lane_bits: Annotated[
        LaneBits | None,
        Field(
            description="bits of a float16 or bfloat16 element on the wire; by default `lane_bits` if that is 16 or 8, "
            "else 16 in tensors of more than 4096 elements in groups of up to 32 ranks (float16: 8), and 32 in others; "
            "the same on all ranks"
        ),
    ] = None
    slots: Annotated[
        int,
        Field(
            ge=2,
            le=1 << 16,
            description="slots (packets in flight) that the job asks for, a power of two; the controller may grant "
            "fewer, and more to a job on the servers of more than 8 ranks. The worker uses as many as keep the links "
            "busy",
        ),
        AfterValidator(_power_of_two),
    ] = 256
    address: Annotated[
        IPv4Address | None,
        Field(
            description="IPv4 address of this host's interface to the switch; by default, the source address of the "
            "route to it. The controller must be reachable from there, or know it (`--host-address`)"
        ),
    ] = None
    switch_port: Annotated[
        int | None,
        Field(
            ge=1,
            le=510,
            description="the switch port of this host; by default, the one that the controller's `--host` or topology "
            "file names",
        ),
    ] = None
    aggregation: Annotated[
        AskedAggregation,
        Field(
            description="what sums: `leased` is slots of a switch for this job alone, `shared` slots that jobs compete "
            "for, with servers behind them, `server` aggregation servers in host memory, which need no programmable "
            "switch, `auto` the first of these that there is for the job; the same on all ranks"
        ),
    ] = LEASED
    servers: Annotated[
        ServerKind,
        Field(
            description="of a job with servers: `colocated` has each rank's process serve a share, "
            "`registered` uses the `inagg-server` processes that have registered with the controller"
        ),
    ] = COLOCATED
    priority: Annotated[
        int,
        Field(
            ge=0,
            le=255,
            description='with `aggregation = "shared"`: a job takes slots from jobs of a lower priority',
        ),
    ] = 0
    wait_s: Annotated[
        float,
        Field(
            ge=0,
            le=1e9,
            allow_inf_nan=False,
            description="seconds to wait for other jobs to end if there is no room for this one; after them, what "
            "`fallback` says; the same on all ranks",
        ),
    ] = 0.0
    job_class: Annotated[
        JobClassName | None,
        Field(
            description="class of the job, one of the controller's `--job-class`; its quotas hold for all jobs of the "
            "class together. By default, the first class of the tenant, and without tenants `default`. That of rank 0 "
            "counts"
        ),
    ] = None
    job_name: Annotated[
        JobName | None,
        Field(
            description="name of the job in the controller's log, answers and metrics, and in `inagg status`; by "
            "default, that of the script (`train.py`, `-m module`). That of rank 0 counts"
        ),
    ] = None
    host_name: Annotated[
        HostName | None,
        Field(description="name of this host there; by default, the first part of what `hostname` prints"),
    ] = None
    rack: Annotated[
        RackName | None,
        Field(
            description="name of this host's rack, for `aggregation = server`: the servers sum within each rack first, "
            "so that a rack sends one sum of each chunk, however many ranks it has. By default, the name of the host's "
            "switch, if the controller has a topology file. Ranks that share a host may name the host"
        ),
    ] = None
    on_path_loss: Annotated[
        tuple[PathLoss, ...],
        BeforeValidator(_words),
        AfterValidator(_once_each),
        Field(
            min_length=1,
            description="what is tried, in order, when what sums for the job is lost: `same` waits 3 s until it is "
            "there again, `other` takes what else of its kind there is, `servers` has the ranks' processes sum, in the "
            "network in which all ranks reach the controller, `inner` has the ranks themselves sum over gloo, `fail` "
            "ends the job. Then whatever comes first is taken, until 30 s after the loss. The sums are the same bits. "
            "As text `same,servers`. That of rank 0 counts",
        ),
    ] = ("same", "other", "servers", "inner", "fail")
    fallback: Annotated[
        Literal["server", "error", "inner"],
        Field(
            description="if no job can be joined: `server` has servers do the sums, with the same bits, if the "
            "switch has no room, and is `error` for other reasons; `error` raises on all ranks; `inner` warns, and "
            "gloo does the sums on all ranks for the life of the group; the same on all ranks"
        ),
    ] = "server"
    inner_cuda: Annotated[
        Literal["auto", "nccl", "gloo"],
        Field(
            description="backend for collectives of CUDA tensors that the switch does not do: `auto` is NCCL if torch "
            "has it and no two ranks share a GPU (NCCL refuses that), otherwise gloo"
        ),
    ] = "auto"
    device_sums: Annotated[
        Literal["auto", "host", "triton", "torch"],
        Field(
            description="who makes the lanes of CUDA tensors: `host` copies the elements to the host, whose packet "
            "threads make them; `triton` (fused kernels) and `torch` (its operations, slow) make them on the GPU; "
            "`auto` is `triton` for tensors of 131,072 elements and more whose lanes have fewer bits than elements, "
            "if Triton works, else `host`. Ranks may differ in it; results do not change"
        ),
    ] = "auto"
    rounding: Annotated[
        Literal["nearest", "stochastic"],
        Field(
            description="rounding of elements to lanes: `nearest`, or `stochastic` (up or down with probabilities "
            "that make the mean exact)"
        ),
    ] = "nearest"
    seed: Annotated[
        int,
        Field(
            ge=0,
            lt=1 << 63,
            description="seed of stochastic rounding; each rank draws from a different sequence",
        ),
    ] = 0
    spin_us: Annotated[
        float,
        Field(
            ge=0,
            le=1e6,
            description="microseconds to poll for packets before sleeping; useful if each worker has a spare core",
        ),
    ] = 0.0
    packet_threads: Annotated[
        int | None,
        Field(
            ge=1,
            le=64,
            description="threads that send and receive, a power of two; by default two if a rank has 8 processors and "
            "a link of 10 Gbit/s or more, or of unknown rate, else one. One with servers, and no more than there are "
            "32 slots for. Ranks may differ in it; results do not change",
        ),
        AfterValidator(lambda count: None if count is None else _power_of_two(count)),
    ] = None
    cpus: Annotated[
        Annotated[str, BeforeValidator(_one_cpu), AfterValidator(_list_of_cpus)] | None,
        Field(
            description="processors on which the packet threads, and that of a server in this process, may run, in "
            "taskset's notation (`0,4-7`); by default, those of the process"
        ),
    ] = None
    link_rate: Annotated[
        float | None,
        Field(
            gt=0,
            allow_inf_nan=False,
            description="rate of the link to the switch in bits a second, for `inagg.explain`; by default, the "
            "interface's",
        ),
    ] = None
    setup_timeout_s: Annotated[
        float,
        Field(
            gt=0,
            le=1e9,
            allow_inf_nan=False,
            description="seconds in which a busy or absent controller must answer, all ranks must join the job, and "
            "then the switch must answer their first packets",
        ),
    ] = 60.0

    @property
    def own_job_name(self) -> str:
        """`job_name`, by default that of the script that this process runs; empty if it runs none."""
        return job_name(_script()) if self.job_name is None else self.job_name

    @property
    def own_host_name(self) -> str:
        """`host_name`, by default this host's own name."""
        return self.host_name or host_name(socket.gethostname().partition(".")[0])

    def read_token(self) -> str | None:
        """The token of `controller_token`, or the one that is in `controller_token_file` now.

        Raises:
            ConfigurationError: the file cannot be read, or has no token.
        """
        if self.controller_token is not None or self.controller_token_file is None:
            return None if self.controller_token is None else self.controller_token.get_secret_value()
        place = f"controller_token_file {self.controller_token_file}"
        try:
            token = self.controller_token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigurationError(
                f"{place}: {reason}; it must have the token that the operator has given"
            ) from None
        if not is_token(token):
            raise ConfigurationError(
                f"{place}: it must have the token that the operator has given, and no more"
            )
        return token

    _no_truth_values = field_validator("*", mode="before")(refuse_truth_value)

    def __init__(self, /, **settings: object) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise ConfigurationError(_explain(error, {name: name for name in settings})) from error

    @classmethod
    def resolve(
        cls,
        given: Self | None = None,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        *,
        ranks: int = 2,
    ) -> Self:
        """The options of a group: those set in `given`, then the environment's, then those of inagg.toml.

        environment: by default the process's. folder: by default the working directory. ranks: of the group. One rank
        alone needs no controller.

        Raises:
            ConfigurationError: names the source, the setting and the expected value.
        """
        environment = os.environ if environment is None else environment
        path = _config_file(environment, Path() if folder is None else folder)
        settings: dict[str, object] = {}
        places: dict[str, str] = {}
        if path is not None:
            settings = _read(path)
            places = {name: f"{path}: {name}" for name in settings}
        from_environment = _from_environment(environment)
        _drop_other_tokens(settings, from_environment)
        for name, (variable, value) in from_environment.items():
            settings[name] = value
            places[name] = variable
        if given is not None:
            own = given.model_dump(include=given.model_fields_set)
            _drop_other_tokens(settings, own)
            settings |= own
            places |= {name: name for name in own}
        try:
            options = (cls if given is None else type(given))(**settings)
        except ConfigurationError as error:
            cause = error.__cause__
            if not isinstance(cause, ValidationError):
                raise
            raise ConfigurationError(_explain(cause, places)) from cause
        if options.controller is None and ranks > 1:
            raise ConfigurationError(
                f"inagg options: no controller is given. Set {_PREFIX}CONTROLLER=http://HOST:PORT, write controller = "
                f'"http://HOST:PORT" in {CONFIG_FILE}, or pass pg_options=inagg.Options(controller="http://HOST:PORT").'
            )
        return options


class StagedOptions(Options):
    """Options of a group that processes CPU tensors like CUDA tensors. See `Options.stage_cpu`."""

    stage_cpu: ClassVar[bool] = True


def _script() -> str:
    """What this process runs: "train.py", or "-m module"; empty in an interactive interpreter, and for ``-c``."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return f"-m {spec.name.removesuffix('.__main__')}"
    return Path(getattr(main, "__file__", "") or "").name


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return _PREFIX + name.upper()


def launcher_environment(settings: Sequence[str]) -> dict[str, str]:
    """The environment variables for settings given as NAME=VALUE on a launcher's command line.

    Raises:
        ConfigurationError: a setting has another form, or is wrong.
    """
    given = dict(setting.split("=", 1) for setting in settings if "=" in setting)
    if len(given) < len(settings):
        raise ConfigurationError(
            "inagg options: a setting must have the form NAME=VALUE, each name once: "
            + ", ".join(setting.partition("=")[0] for setting in settings)
        )
    Options(**given)
    if _SECRET_SETTING in given:
        raise ConfigurationError(
            f"inagg options: {_SECRET_SETTING} on a command line is seen by other users of this machine; give "
            "controller_token_file"
        )
    return {variable_of(name): value for name, value in given.items()}


def _drop_other_tokens(settings: dict[str, object], above: Mapping[str, object]) -> None:
    """Drop the token of lower sources, if a source above has one in either form."""
    if _TOKEN_SETTINGS & above.keys():
        for name in _TOKEN_SETTINGS:
            settings.pop(name, None)


def _from_environment(environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Setting -> (variable, value). An empty variable counts as not set."""
    known = {variable_of(name): name for name in Options.model_fields}
    for variable in environment:
        if variable.startswith(_PREFIX) and variable not in (*known, CONFIG_VARIABLE):
            name = variable.removeprefix(_PREFIX).lower()
            close = difflib.get_close_matches(name, Options.model_fields, 1, cutoff=0.8)
            if close:
                raise ConfigurationError(
                    f"inagg options: {variable} is not a setting; did you mean {variable_of(close[0])}?"
                )
    return {
        name: (variable, environment[variable])
        for variable, name in known.items()
        if environment.get(variable)
    }


def _config_file(environment: Mapping[str, str], folder: Path) -> Path | None:
    named = environment.get(CONFIG_VARIABLE)
    if not named:
        return path if (path := folder / CONFIG_FILE).is_file() else None
    path = folder / named
    if not path.is_file():
        raise ConfigurationError(f"inagg options: {CONFIG_VARIABLE} names {named}, which is not a file")
    return path


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ConfigurationError(f"inagg options: {path}: {error}") from error


def _explain(error: ValidationError, places: Mapping[str, str]) -> str:
    """A message with each wrong setting, by the name under which its source has it."""
    problems = []
    for detail in error.errors():
        name = str(detail["loc"][0]) if detail["loc"] else "options"
        place = places.get(name, name)
        if detail["type"] == "extra_forbidden":
            close = difflib.get_close_matches(name, Options.model_fields, 1)
            hint = f"did you mean {close[0]}?" if close else f"settings are {', '.join(Options.model_fields)}"
            problems.append(f"{place}: is not a setting; {hint}")
        else:
            message = detail["msg"].removeprefix("Value error, ")  # pydantic's prefix of our messages
            given = "" if name == _SECRET_SETTING else f" (got {detail['input']!r})"
            problems.append(f"{place}: {message}{given}")
    return "inagg options: " + "; ".join(problems)


def markdown_table() -> str:
    """The options as a table for docs/options.md."""

    def default(value: Any) -> str:
        if isinstance(value, tuple):
            return f"`{','.join(value)}`"
        return "" if value is None else f"`{value:g}`" if isinstance(value, float) else f"`{value}`"

    rows = [
        f"| `{name}` | `{variable_of(name)}` | {default(field.default)} | {field.description} |"
        for name, field in Options.model_fields.items()
    ]
    return "\n".join(["| setting | variable | default | meaning |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    print(markdown_table())
