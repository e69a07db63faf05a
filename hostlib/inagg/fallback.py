# SPDX-License-Identifier: Apache-2.0
"""Joins a job on the switch, or agrees with all ranks of the group that gloo does the sums instead."""

import logging
import time
from collections.abc import Callable
from datetime import timedelta

import torch
from torch.distributed.distributed_c10d import Work

from inagg.errors import InaggError, JobError
from inagg.inner.group import ForwardingGroup
from inagg.membership.assembly import Assembly, shorten
from inagg.membership.join import all_fall_back, join
from inagg.membership.session import Session
from inagg.options import Options
from inagg_contract.ranks import name_ranks

_log = logging.getLogger(__name__)

# The trial of gloo: float32 elements from each rank to each other (more than a jumbo frame), and the time allowed.
_TRIAL_ELEMENTS, _TRIAL_S = 4096, 8.0
_LEAST_PATIENCE_S = 1.0  # after joining has failed, gloo gets at least this long


def join_or_fall_back(
    ranks: Assembly, group: ForwardingGroup, options: Options, on_failure: Callable[[], None]
) -> Session | str:
    """Join a job. If that fails and every rank has ``fallback="inner"``, have gloo do the group's sums.

    Returns:
        The session of the job; if gloo does the sums, the reason why there is no job.

    Raises:
        InaggError: neither the switch nor gloo can do the sums. All ranks raise.
    """
    # The trial runs while the job is joined, so that its outcome is known when joining fails.
    trial = _begin_trial(group) if options.fallback == "inner" else None
    end = time.monotonic() + _TRIAL_S
    try:
        return join(ranks, options, on_failure)
    except InaggError as error:
        if ranks.over or not all_fall_back(ranks, options):
            raise
        assert trial is not None
        reason = str(error)
        _end_trial(ranks, trial, max(_LEAST_PATIENCE_S, end - time.monotonic()), reason)
        # Log only the error's text: a handler may keep records, and the error's traceback refers to the group.
        _log.warning("inagg: there is no job, gloo does the sums of this group instead: %s", reason)
        return reason


def _begin_trial(group: ForwardingGroup) -> Work:
    """Start to send large packets between every two ranks with gloo."""
    sent = torch.zeros(group.size() * _TRIAL_ELEMENTS, dtype=torch.float32, device="cpu")
    work: Work = group.inner.alltoall_base(torch.empty_like(sent), sent, [], [])
    return work


def _end_trial(ranks: Assembly, trial: Work, patience_s: float, reason: str) -> None:
    """Wait until gloo has carried the packets at all ranks.

    reason: why there is no job.

    Raises:
        JobError: gloo did not carry them at some rank. All ranks raise.
    """
    problem = None
    try:
        trial.wait(timedelta(seconds=patience_s))
    except RuntimeError as error:
        problem = shorten(str(error))
    problems = ranks.exchange("inner", problem)
    failed = [rank for rank, found in enumerate(problems) if found is not None]
    if failed:
        raise JobError(
            f"there is no job ({reason}), and gloo did not carry {4 * _TRIAL_ELEMENTS} bytes from each "
            f"rank to each other within {_TRIAL_S:g} s. Is the MTU the same on all hosts and switches? "
            f"Gloo, at {name_ranks(failed)}: {problems[failed[0]]}",
            rank=ranks.rank,
        )
