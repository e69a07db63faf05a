# SPDX-License-Identifier: Apache-2.0
"""Finds ranks that call different collectives, and names the first difference. A late rank is not a difference."""

import tracemalloc
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from inagg.sums.journal import REMEMBERED, Journal
from inagg_contract.documents import MOST_CALLS
from inagg_controller.jobs.calls import Call, Comparison, Mismatch, Question, Report


class Rank:
    """A rank: its journal, and the controller's last question."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.journal = Journal()
        self.asked: tuple[int, int] | None = None

    def begin(self, *texts: str) -> None:
        for text in texts:
            self.journal.begin(text)

    def beat(self, comparison: Comparison) -> Mismatch | None:
        told = self.journal.report(self.asked)
        question = None if told.asked is None else Question(*told.asked)
        calls = [Call(digest, text) for digest, text in told.calls]
        found = comparison.hear(self.number, Report(told.begun, question, calls))
        self.asked = comparison.question
        return found


def beats(comparison: Comparison, ranks: Sequence[Rank], rounds: int = 9) -> Mismatch | None:
    for _ in range(rounds):
        for rank in ranks:
            if (found := rank.beat(comparison)) is not None:
                return found
    return None


def group(workers: int) -> tuple[Comparison, list[Rank]]:
    return Comparison(workers), [Rank(number) for number in range(workers)]


def test_the_first_difference_is_named_with_all_sides() -> None:
    comparison, ranks = group(3)
    for rank in ranks:
        rank.begin("barrier()", "sum(3)")
    assert beats(comparison, ranks) is None
    for rank in ranks:
        rank.begin(*["sum(5)"] * 10, "sum(5)" if rank.number != 1 else "sum(6)", *["sum(7)"] * 3)
    found = beats(comparison, ranks)
    assert found == Mismatch(13, {0: "sum(5)", 1: "sum(6)", 2: "sum(5)"})
    assert str(found) == "ranks 0, 2: collective 13 is sum(5); rank 1: collective 13 is sum(6)"


def test_a_rank_that_has_gone_on_and_one_that_is_stuck_are_compared_where_they_part() -> None:
    comparison, (first, second) = group(2)
    first.begin("sum(3)")
    second.begin("broadcast(3)", "sum(3)", "barrier()")
    assert beats(comparison, [first, second]) == Mismatch(1, {0: "sum(3)", 1: "broadcast(3)"})


def test_a_late_rank_and_one_that_says_nothing_are_no_mismatch() -> None:
    comparison, (first, second, silent) = group(3)
    first.begin(*["sum(3)"] * 500)
    second.begin("sum(3)")
    assert beats(comparison, [first, second], 50) is None
    assert beats(comparison, [first, second, silent], 50) is None


def test_what_is_forgotten_is_not_blamed_on_another_call() -> None:
    comparison, (first, second) = group(2)
    first.begin("sum(3)", *["sum(5)"] * (REMEMBERED + 100))
    second.begin("sum(4)", *["sum(5)"] * (REMEMBERED + 100))
    found = beats(comparison, [first, second])
    assert found is not None
    assert found.number == 102
    assert set(found.calls.values()) == {"after the first difference, which the ranks have forgotten"}


def test_an_answer_to_an_earlier_question_is_not_taken_for_one_to_the_next() -> None:
    comparison, (first, second) = group(2)
    first.begin("a", "x", "b")
    second.begin("a", "y", "b")
    assert first.beat(comparison) is None
    assert second.beat(comparison) is None
    early = Report(3, Question(3, 3), [Call(*call) for call in first.journal.report((3, 3)).calls])
    assert beats(comparison, [first, second], 1) is None
    assert comparison.question == Question(3, 3) or comparison.hear(0, early) is None
    assert beats(comparison, [first, second]) == Mismatch(2, {0: "x", 1: "y"})


def answer(rank: int, question: Question, width: int) -> Report:
    """What a rank might answer whose calls all differ from those of other ranks, with texts of this many characters."""
    numbers = range(question.first, question.last + 1)
    calls = [Call(rank << 16 | number, f"{rank * MOST_CALLS + number:{width}}") for number in numbers]
    return Report(question.last, question, calls)


def test_what_is_kept_of_answers_does_not_grow_with_their_texts() -> None:
    workers = 64
    comparison = Comparison(workers)
    tracemalloc.start()
    try:
        for rank in range(workers):
            comparison.hear(rank, Report(MOST_CALLS))
        for _ in range(2):  # the last number, and then all
            question = comparison.question
            assert question is not None
            for rank in range(workers - 1):
                assert comparison.hear(rank, answer(rank, question, 250)) is None
            assert tracemalloc.get_traced_memory()[0] < 100_000
            comparison.hear(workers - 1, answer(workers - 1, question, 250))
    finally:
        tracemalloc.stop()
    assert comparison.question == Question(1, 1)


def test_of_many_long_texts_those_that_do_not_fit_are_not_kept() -> None:
    comparison = Comparison(64)
    for rank in range(64):
        comparison.hear(rank, Report(1))
    found = None
    for rank in range(64):
        assert found is None
        found = comparison.hear(rank, answer(rank, Question(1, 1), 1000))
    assert found is not None
    assert [found.calls[rank].strip() for rank in range(4)] == ["1", "4097", "8193", "12289"]
    others = {found.calls[rank] for rank in range(4, 64)}
    assert others == {"another call, whose text is too long to keep beside the others"}
    assert len(str(found)) < 5000


def test_only_the_first_answer_of_a_rank_to_a_question_counts() -> None:
    comparison, ranks = group(2)
    for rank in ranks:
        rank.begin("barrier()")
        rank.beat(comparison)
    for number in range(3):
        assert comparison.hear(0, Report(1, Question(1, 1), [Call(number, f"{number}")])) is None
    assert comparison.hear(1, Report(1, Question(1, 1), [Call(9, "barrier()")])) == Mismatch(
        1, {0: "0", 1: "barrier()"}
    )


def test_a_difference_that_only_some_ranks_remember_is_not_looked_for_again() -> None:
    comparison = Comparison(2)
    for rank in range(2):
        comparison.hear(rank, Report(3))
    for rank in range(2):
        comparison.hear(rank, Report(3, Question(3, 3), [Call(rank, "c")]))
    assert comparison.question == Question(1, 3)
    assert comparison.hear(0, Report(3, Question(1, 3), [Call(1, "a"), Call(2, "b"), Call(0, "c")])) is None
    found = comparison.hear(1, Report(3, Question(1, 3), [Call(7, "b"), Call(1, "c")]))
    assert found is not None
    assert (found.number, found.calls[0]) == (2, "after the first difference, which the ranks have forgotten")


def test_a_job_that_has_ended_keeps_no_calls() -> None:
    comparison, ranks = group(2)
    for rank in ranks:
        rank.begin("barrier()")
        rank.beat(comparison)
    ranks[0].beat(comparison)
    comparison.close()
    assert comparison.question is None
    assert not any((comparison._begun, comparison._answered, comparison._texts, comparison._first))


texts = st.sampled_from(["sum(1)", "sum(2)", "barrier()"])


@given(
    st.lists(st.lists(texts, max_size=8), min_size=2, max_size=4), st.lists(st.integers(0, 3), max_size=60)
)
def test_whatever_the_order_of_beats_the_first_difference_is_found_and_nothing_else(
    histories: list[list[str]], order: list[int]
) -> None:
    comparison, ranks = group(len(histories))
    left = [list(history) for history in histories]
    found = None
    for index in order:
        who = ranks[index % len(ranks)]
        who.begin(*left[who.number][:1])
        del left[who.number][:1]
        found = found or who.beat(comparison)
    for rank in ranks:
        rank.begin(*left[rank.number])
    found = found or beats(comparison, ranks)
    common = min(map(len, histories))
    expected = next((k for k in range(common) if len({h[k] for h in histories}) > 1), None)
    if expected is None:
        assert found is None
    else:
        assert found == Mismatch(expected + 1, {rank: h[expected] for rank, h in enumerate(histories)})


def test_a_rank_that_has_forgotten_the_answer_is_asked_about_something_newer() -> None:
    comparison, ranks = group(2)
    for rank in ranks:
        rank.begin("barrier()")
        rank.beat(comparison)
        rank.begin(*["sum(3)"] * (REMEMBERED + 1))
    assert beats(comparison, ranks) is None
    ranks[0].begin("sum(4)")
    ranks[1].begin("sum(5)")
    found = beats(comparison, ranks)
    assert found is not None
    assert found.calls == {0: "sum(4)", 1: "sum(5)"}
