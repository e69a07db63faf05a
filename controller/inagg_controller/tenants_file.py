# SPDX-License-Identifier: Apache-2.0
"""The file of --tenants (docs/deployment.md): the operator's list of tenants, which is read again on SIGHUP."""

import os
import tomllib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from inagg_controller.errors import ConfigurationError
from inagg_controller.jobs.tenants import Tenant

# Its group may read it, such as that of the controller's user.
_OTHERS = 0o027
_MOST_BYTES = 1 << 22


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant: list[Tenant]


@dataclass(frozen=True, slots=True)
class TenantsFile:
    """A file of tenants. classes: names of the controller's job classes."""

    path: Path
    classes: Collection[str]

    def read(self) -> tuple[Tenant, ...]:
        """The tenants in the file now. Raises ConfigurationError, which names the file and the first fault."""
        try:
            with self.path.open("rb") as file:
                mode, content = os.fstat(file.fileno()).st_mode, file.read(_MOST_BYTES + 1)
            document = tomllib.loads(content.decode())
        except OSError as error:
            raise self._wrong(error.strerror or str(error)) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise self._wrong(str(error)) from error
        if mode & _OTHERS:
            raise self._wrong(f"others can read or change it; run `chmod 600 {self.path}`")
        if len(content) > _MOST_BYTES:
            raise self._wrong(f"it has more than {_MOST_BYTES} bytes")
        if not document.get("tenant"):
            raise self._wrong(
                "it has no tenants; make one with `inagg-controller tenant NAME --classes CLASS`, or leave out "
                "--tenants to let everybody create jobs"
            )
        try:
            tenants = _File.model_validate(document).tenant
        except ValidationError as error:
            raise self._wrong(_fault(document, error)) from None
        self._check(tenants)
        return tuple(tenants)

    def _check(self, tenants: Sequence[Tenant]) -> None:
        """Check what no tenant alone shows."""
        for name, count in Counter(tenant.name for tenant in tenants).items():
            if count > 1:
                raise self._wrong(f"tenant {name} is there twice")
        owners: dict[str, str] = {}
        for tenant in tenants:
            for digest in tenant.token_sha256:
                if (other := owners.setdefault(digest, tenant.name)) != tenant.name:
                    raise self._wrong(f"tenants {other} and {tenant.name} have the same token_sha256")
            for name in tenant.classes:
                if name not in self.classes:
                    raise self._wrong(
                        f"tenant {tenant.name}: classes: {name} is not a class of this controller; these are "
                        f"{', '.join(self.classes)} (--job-class)"
                    )

    def _wrong(self, fault: str) -> ConfigurationError:
        return ConfigurationError(f"--tenants {self.path}: {fault}")


def _fault(document: dict[str, object], error: ValidationError) -> str:
    """The first fault, with the name of the tenant if it has one."""
    first = error.errors(include_input=False)[0]
    whose, field = "", [str(part) for part in first["loc"] if not isinstance(part, int)][1:]
    tables = document["tenant"]
    if len(first["loc"]) > 1 and isinstance(index := first["loc"][1], int) and isinstance(tables, list):
        name = tables[index].get("name") if isinstance(tables[index], dict) else None
        whose = f"tenant {name if isinstance(name, str) else index + 1}: "
    where = ".".join(field) or str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        known = ", ".join(Tenant.model_fields)
        return f"{whose}{where} is not a setting of a tenant; these are {known}"
    return f"{whose}{where}: {first['msg'].removeprefix('Value error, ')}"
