# SPDX-License-Identifier: Apache-2.0
"""Every run of the rules of shared slots, with few workers, chunks and jobs, and one slot a switch.

`reach` is about sums. Any packet that was ever sent arrives any number of times, in any order, at any later time, or
never; slots are lost or taken by others at any moment. It even lets any contributions sent so far arrive anywhere as a
partial sum. So a state needs no packets, and what is found of the server holds whatever a switch sends on, if only each
partial sum is that of its bits.

`Recovery` is about progress. From each of these states on nothing more is lost, but packets under way arrive in any
order, and switches evict as they like; workers ask, and send again what they are asked for.

A contribution's checksum is a bit that no other has, so that a sum says whose contributions it holds.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cache
from typing import NamedTuple, TypeVar

from inagg_simulator.slot_rules import shared, versions
from inagg_simulator.slot_rules.packets import Packet, Query, Sum, age
from inagg_simulator.slot_rules.shared import Slot
from inagg_simulator.slot_rules.versions import Leaves, Outcome, Version

EPOCH = 2
SERVER = -1

# A switch as its members: workers, by rank, and switches. The outermost is the server.
Tree = tuple["int | Tree", ...]
T = TypeVar("T")


class ViolationError(Exception):
    pass


class Rules(NamedTuple):
    """The rules to explore: those of the tables, or others."""

    switch_step: Callable[..., tuple[Slot, Packet | None, str]] = shared.contribute
    switch_ask: Callable[[Slot, Query, int], Query] = shared.ask
    server_step: Callable[..., Outcome] = versions.contribute
    server_ask: Callable[[Version, Query, int], Outcome] = versions.ask


class Awaited(NamedTuple):
    """A worker that waits for a chunk."""

    job: int
    worker: int
    chunk: int


class State(NamedTuple):
    have: tuple[
        tuple[tuple[int, ...], ...], ...
    ]  # by job, worker and slot: chunks whose result the worker has
    versions: tuple[tuple[Version, ...], ...]  # by job, at its server
    slots: tuple[Slot, ...]  # by switch


class Place(NamedTuple):
    """A switch, or the server."""

    parent: int
    below: int  # the bits of its workers
    members: tuple[int, ...]  # the bits below each member


class Setting:
    """Jobs on one tree, each with a server. The switches share their slots among the jobs."""

    def __init__(
        self,
        tree: Tree,
        *,
        chunks: int,
        slots: int = 1,
        jobs: int = 1,
        first_chunk: int = 0,
        versions: int = 2,  # of a server's slot; fewer must fail
        leftover: Slot = Slot(),  # noqa: B008  what all slots hold at first
        rules: Rules = Rules(),  # noqa: B008
    ) -> None:
        self.chunks, self.slots, self.jobs, self.first_chunk = chunks, slots, jobs, first_chunk
        self.versions, self.leftover, self.rules = versions * slots, leftover, rules
        self.switches: list[Place] = []
        self.worker_at: dict[int, int] = {}
        self.server = Place(SERVER, *self._add(tree, SERVER))
        self.everybody = self.server.below
        # What states have in common is worked out once: rules are functions of their arguments alone.
        self.partial = cache(self._partial)
        self._sums = cache(self._sums_at)
        self._step_at_switch = cache(self._checked_step)

    def _add(self, tree: Tree, number: int) -> tuple[int, tuple[int, ...]]:
        """Add what is below a place. Returns its workers' bits: all, and by member."""
        members = []
        for member in tree:
            if isinstance(member, int):
                self.worker_at[member] = number
                members.append(1 << member)
            else:
                switch = len(self.switches)
                self.switches.append(Place(number, 0, ()))
                below, parts = self._add(member, switch)
                self.switches[switch] = Place(number, below, parts)
                members.append(below)
        return sum(members), tuple(members)

    def start(self) -> State:
        have = (((0,) * self.slots,) * len(self.worker_at),) * self.jobs
        versions = [Version(epoch=1, chunk=2**31 - 1)] * self.versions
        return State(have, (tuple(versions),) * self.jobs, (self.leftover,) * len(self.switches))

    def _partial(self, job: int, chunk: int, members: int) -> Packet:
        """The right sum of these workers' contributions."""
        checksum = members << ((chunk * self.jobs + job) * len(self.worker_at))
        return Packet(job + 1, EPOCH, (self.first_chunk + chunk) % 2**32, members, Sum(checksum=checksum))

    def contribution(self, awaited: Awaited) -> Packet:
        return self.partial(awaited.job, awaited.chunk, 1 << awaited.worker)

    def query(self, awaited: Awaited) -> Query:
        return Query(*self.contribution(awaited)[:4])

    def chunk(self, packet: Packet | Query | Version | Slot) -> int:
        return age(packet.chunk, self.first_chunk)

    def check(self, job: int, held: Packet | Slot | Version) -> None:
        """Raises ViolationError unless the sum is that of its bits."""
        if held.epoch == EPOCH and held.members and self.chunk(held) >= 0:
            right = self.partial(job, self.chunk(held), held.members).sum.checksum
            if held.sum.checksum != right:
                raise ViolationError(
                    f"a sum of job {job}, chunk {self.chunk(held)} is {held.sum.checksum:b}, not {right:b}"
                )

    def version(self, state: State, awaited: Awaited) -> Version:
        return state.versions[awaited.job][(self.first_chunk + awaited.chunk) % self.versions]

    def waiting(self, state: State) -> Iterator[Awaited]:
        for job, workers in enumerate(state.have):
            for worker, have in enumerate(workers):
                for slot, done in enumerate(have):
                    if done * self.slots + slot < self.chunks:
                        yield Awaited(job, worker, done * self.slots + slot)

    def at_server(self, state: State, packet: Packet) -> tuple[State, Leaves]:
        """A partial sum arrives at its job's server. Returns also what leaves."""
        if packet.epoch != EPOCH:
            return state, Leaves.NOTHING
        job, index = packet.job - 1, packet.chunk % self.versions
        versions = state.versions[job]
        other = versions[(packet.chunk - self.slots) % self.versions]
        held, counters, leaves = self.rules.server_step(
            versions[index], other, packet, self.slots, self.everybody, first_chunk=self.first_chunk
        )
        if "started" in counters:
            self._check_overwritten(state, job, versions[index])
        self.check(job, held)
        if held.final and held.members != self.everybody:
            raise ViolationError(f"the result of chunk {packet.chunk} lacks contributions")
        versions = with_item(versions, index, held)
        return State(state.have, with_item(state.versions, job, versions), state.slots), leaves

    def _check_overwritten(self, state: State, job: int, old: Version) -> None:
        if old.epoch == EPOCH and self.chunk(old) >= 0:
            round_, slot = divmod(self.chunk(old), self.slots)
            if any(have[slot] <= round_ for have in state.have[job]):
                raise ViolationError(f"chunk {self.chunk(old)} is overwritten, whose result is still needed")

    def at_switch(
        self, state: State, switch: int, packet: Packet, *, evicts: bool
    ) -> tuple[State, Packet | None]:
        """A partial sum arrives at a switch. Returns also what goes on up."""
        slot, left = self._step_at_switch(switch, state.slots[switch], packet, evicts)
        return State(state.have, state.versions, with_item(state.slots, switch, slot)), left

    def _checked_step(
        self, switch: int, before: Slot, packet: Packet, evicts: bool
    ) -> tuple[Slot, Packet | None]:
        below = self.switches[switch].below
        slot, left, _ = self.rules.switch_step(before, packet, below, expired=evicts)
        self.check(slot.job - 1, slot)
        if left:
            self.check(left.job - 1, left)
        return slot, left

    def take(self, state: State, awaited: Awaited) -> State:
        """A worker takes the result."""
        job, worker, slot = awaited.job, awaited.worker, awaited.chunk % self.slots
        have = state.have[job][worker]
        workers = with_item(state.have[job], worker, with_item(have, slot, have[slot] + 1))
        return state._replace(have=with_item(state.have, job, workers))

    def after_any_packet(self, state: State) -> Iterator[State]:
        """The states after one packet, or after a slot is lost or its sum."""
        for job in range(self.jobs):
            for chunk in range(self.chunks):
                yield from self._after_contributions(state, job, chunk)
        for awaited in self.waiting(state):
            held = self.version(state, awaited)
            if held.final and (held.epoch, self.chunk(held)) == (EPOCH, awaited.chunk):
                yield self.take(state, awaited)
        for switch, slot in enumerate(state.slots):
            for left in (Slot(), slot.emptied):
                yield state._replace(slots=with_item(state.slots, switch, left))

    def _after_contributions(self, state: State, job: int, chunk: int) -> Iterator[State]:
        round_, slot = divmod(chunk, self.slots)
        sent = sum(1 << worker for worker, have in enumerate(state.have[job]) if have[slot] >= round_)
        for packet in self._sums(job, chunk, sent, self.server):
            yield self.at_server(state, packet)[0]
        for switch, place in enumerate(self.switches):
            for packet in self._sums(job, chunk, sent, place):
                for evicts in (False, True):
                    yield self.at_switch(state, switch, packet, evicts=evicts)[0]

    def _sums_at(self, job: int, chunk: int, sent: int, place: Place) -> list[Packet]:
        """All that may come to a place from one of its members."""
        return [
            self.partial(job, chunk, part)
            for part in range(1, sent + 1)
            if part & ~sent == 0 and any(part & ~member == 0 for member in place.members)
        ]

    def reach(self) -> set[State]:
        """Every state. Raises ViolationError."""
        return closure([self.start()], self.after_any_packet)


class Message(NamedTuple):
    """A packet under way to a switch or the server; or a result, to a worker."""

    to: int
    packet: Packet | Query
    result: bool = False


class Moment(NamedTuple):
    """A state with packets under way."""

    state: State
    under_way: frozenset[Message] = frozenset()
    asked: frozenset[Awaited] = frozenset()  # the workers whose query has no answer yet

    def send(self, message: Message) -> "Moment":
        return Moment(self.state, self.under_way | {message}, self.asked)

    def without(self, message: Message) -> "Moment":
        return Moment(self.state, self.under_way - {message}, self.asked)


Step = tuple[Hashable, Moment]  # what happens, and what follows


class Recovery:
    """All runs from given states on, in which every packet arrives once.

    interleaved: packets of all workers cross. Otherwise a query, and all that follows from it, come at once.
    """

    def __init__(self, setting: Setting, *, interleaved: bool = False) -> None:
        self.setting, self.interleaved = setting, interleaved

    def steps(self, moment: Moment) -> Iterator[Step]:
        """All that may happen next. What may happen for ever does happen some time."""
        for message in moment.under_way:
            for following in self.arrive(moment.without(message), message):
                yield message, following
        for awaited in self.setting.waiting(moment.state):
            # A worker asks after a silence, so not right behind its own contribution.
            first = self.setting.worker_at[awaited.worker]
            own = Message(first, self.setting.contribution(awaited))
            if awaited not in moment.asked and own not in moment.under_way:
                asking = moment._replace(asked=moment.asked | {awaited})
                asking = asking.send(Message(first, self.setting.query(awaited)))
                for following in [asking] if self.interleaved else self.after_all(asking):
                    yield awaited, following

    def after_all(self, moment: Moment) -> list[Moment]:
        """What there may be when all that is under way has arrived."""

        def after_one(moment: Moment) -> Iterator[Moment]:
            if moment.under_way:
                message = min(moment.under_way)
                yield from self.arrive(moment.without(message), message)

        return [reached for reached in closure([moment], after_one) if not reached.under_way]

    def arrive(self, moment: Moment, message: Message) -> Iterator[Moment]:
        """The moments after a packet has arrived: two if a switch may evict."""
        to, packet = message.to, message.packet
        if isinstance(packet, Query):
            yield self.arrive_query(moment, to, packet)
        elif message.result:
            yield self.arrive_result(moment, Awaited(packet.job - 1, to, self.setting.chunk(packet)))
        elif to == SERVER:
            state, leaves = self.setting.at_server(moment.state, packet)
            moment = Moment(state, moment.under_way, moment.asked)
            receivers = {Leaves.RESULT: self.setting.everybody, Leaves.RESULT_AGAIN: packet.members}
            yield self.send_result(moment, packet, receivers[leaves]) if leaves in receivers else moment
        else:
            for evicts in (False, True):
                state, left = self.setting.at_switch(moment.state, to, packet, evicts=evicts)
                following = Moment(state, moment.under_way, moment.asked)
                yield following.send(Message(self.setting.switches[to].parent, left)) if left else following

    def send_result(self, moment: Moment, packet: Packet, receivers: int) -> Moment:
        """A result leaves for those of the workers that still wait for it."""
        result = packet._replace(members=0, sum=Sum())
        for job, worker, chunk in self.setting.waiting(moment.state):
            if (job, chunk) == (packet.job - 1, self.setting.chunk(packet)) and receivers >> worker & 1:
                moment = moment.send(Message(worker, result, result=True))
        return moment

    def arrive_result(self, moment: Moment, awaited: Awaited) -> Moment:
        """A worker takes a result and sends the slot's next contribution."""
        state = self.setting.take(moment.state, awaited)
        moment = moment._replace(state=state, asked=moment.asked - {awaited})
        following = awaited._replace(chunk=awaited.chunk + self.setting.slots)
        return self.contribute(moment, following) if following.chunk < self.setting.chunks else moment

    def arrive_query(self, moment: Moment, to: int, query: Query) -> Moment:
        """An answer is at the asker at once: what it sends then takes any time as it is."""
        if to != SERVER:
            place = self.setting.switches[to]
            query = self.setting.rules.switch_ask(moment.state.slots[to], query, place.below)
            return moment.send(Message(place.parent, query))
        awaited = Awaited(query.job - 1, query.asker.bit_length() - 1, self.setting.chunk(query))
        if awaited not in moment.asked:
            return moment
        held = self.setting.version(moment.state, awaited)
        answer = self.setting.rules.server_ask(held, query, self.setting.everybody).leaves
        if answer is Leaves.NOTHING:
            raise ViolationError(f"{awaited} has no answer")
        moment = moment._replace(asked=moment.asked - {awaited})
        return self.contribute(moment, awaited) if answer is Leaves.SAY_AGAIN else moment

    def contribute(self, moment: Moment, awaited: Awaited) -> Moment:
        to = self.setting.worker_at[awaited.worker]
        return moment.send(Message(to, self.setting.contribution(awaited)))

    def check(self, states: Iterable[State]) -> int:
        """Returns the number of moments. Raises ViolationError if results may never come after one of them."""
        edges: dict[Moment, list[Step]] = {}
        unexplored = [Moment(state) for state in states]
        while unexplored:
            moment = unexplored.pop()
            if moment not in edges:
                edges[moment] = list(self.steps(moment))
                unexplored.extend(following for _, following in edges[moment] if following not in edges)
        for component in components(edges):
            if any(self.setting.waiting(component[0].state)) and can_last(component, edges):
                raise ViolationError(f"results may never come after {component[0]}")
        return len(edges)


def can_last(component: list[Moment], edges: dict[Moment, list[Step]]) -> bool:
    """Whether a run can stay among these moments though nothing is put off for ever.

    It cannot if there is something that may happen at all of them and always leads out.
    """
    inside = set(component)
    possible = set.intersection(*({what for what, _ in edges[moment]} for moment in component))
    staying = {what for moment in component for what, following in edges[moment] if following in inside}
    return not possible - staying


def components(edges: dict[Moment, list[Step]]) -> Iterator[list[Moment]]:
    """The strongly connected components (Tarjan 1972, without recursion)."""
    index: dict[Moment, int] = {}
    low: dict[Moment, int] = {}  # of those on the stack
    stack: list[Moment] = []
    for root in edges:
        path = [] if root in index else [root]
        rest = {root: iter(edges[root])}
        while path:
            node = path[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
            for _, following in rest[node]:
                if following not in index:
                    rest[following] = iter(edges[following])
                    path.append(following)
                    break
                if following in low:
                    low[node] = min(low[node], low[following])
            else:
                path.pop()
                if path:
                    low[path[-1]] = min(low[path[-1]], low[node])
                if low[node] == index[node]:
                    component = [stack.pop()]
                    while component[-1] != node:
                        component.append(stack.pop())
                    for member in component:
                        del low[member]
                    yield component


def closure(start: Iterable[T], successors: Callable[[T], Iterator[T]]) -> set[T]:
    """All that can be reached."""
    reached = set(start)
    unexplored = list(reached)
    while unexplored:
        for following in successors(unexplored.pop()):
            if following not in reached:
                reached.add(following)
                unexplored.append(following)
    return reached


def with_item(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])
