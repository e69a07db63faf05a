# SPDX-License-Identifier: Apache-2.0
"""The option --live of commands that train."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from inagg_testbed.terminal import ProgressView

if TYPE_CHECKING:
    from inagg_contract.documents import Overview
    from inagg_testbed.network.testbed import Testbed

LiveOption = Annotated[
    bool,
    typer.Option(
        "--live",
        help="Print the URL of the controller's page, which shows the training in a browser, and show ranks, rates and"
        " who is late below the progress; without a terminal, a line for each change of a job.",
    ),
]


@contextmanager
def shown_live(testbed: "Testbed", view: ProgressView, *, wanted: bool = True) -> Iterator[None]:
    """Show a testbed's trainings while the block runs, if wanted. A testbed without a controller shows nothing, which
    is said.

    The operator's token is printed on a terminal only: whoever reads a log may not be the operator.
    """
    if not wanted:
        yield
        return
    if testbed.controller is None:
        view.console.print("--live: this testbed has no controller, so there is nothing to show")
        yield
        return
    from inagg_testbed.operate.live import Watch, live_page, news, rendered

    told: list[Overview] = []

    def show(before: "Overview", after: "Overview") -> None:
        if view.console.is_terminal:
            view.below = rendered(before, after)
            return
        for line in news(told[0] if told else None, after):
            view.console.print(line, highlight=False, soft_wrap=True, markup=False)
        told[:] = [after]

    with ExitStack() as stack:
        url = stack.enter_context(live_page(testbed.controller))
        if view.console.is_terminal:
            url = f"{url}#token={testbed.controller.token}"  # browsers do not send what is behind #
        else:
            url = f"{url} asks for the token, which is in {testbed.controller.token_file}"
        view.console.print(f"live: {url}", highlight=False, soft_wrap=True, markup=False)
        stack.enter_context(Watch(testbed.controller, show))
        yield
