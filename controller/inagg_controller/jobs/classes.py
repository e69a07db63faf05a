# SPDX-License-Identifier: Apache-2.0
"""Job classes: what the jobs of one class may have together, as the operator says."""

from collections.abc import Iterable
from typing import ClassVar

from inagg_contract.documents import DEFAULT_JOB_CLASS
from inagg_controller.jobs.accounts import Account, Owner


class JobClass(Account):
    """A class and its quotas."""

    kind: ClassVar[str] = "class"
    alternative: ClassVar[str] = "set another job_class"

    def owns(self, owner: Owner) -> bool:
        """See Account."""
        return owner.job_class == self.name


def known_classes(given: Iterable[JobClass]) -> dict[str, JobClass]:
    """The classes by name: those that the operator gives, and the default one."""
    classes = {each.name: each for each in given}
    classes.setdefault(DEFAULT_JOB_CLASS, JobClass(name=DEFAULT_JOB_CLASS))
    return classes
