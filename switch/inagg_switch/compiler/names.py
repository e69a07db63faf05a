# SPDX-License-Identifier: Apache-2.0
"""Names of the control plane, and C++ names that collide with no other."""

import re
from collections.abc import Callable

from inagg_switch.compiler import syntax

_CPLUSPLUS = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl
    concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default
    delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor
    xor_eq assert errno main linux unix stdin stdout stderr sched_priority
    """.split()  # noqa: SIM905 - a list of words reads better
)
# Names that generated structs declare or use, besides those of their fields.
_MEMBERS = frozenset(
    """
    bytes max_bytes valid load store length clear assign p other varbits
    p4 isw std value_t Varbit Stack load_bits load_bits_to store_bits assign_object
    """.split()  # noqa: SIM905
)
# Names that generated code uses, besides the program's own.
_GENERATED = frozenset(
    """
    p4 isw std program Program apply Packet packet_in packet_out
    value_t Stack Wide Entry Table Register Counter FieldSum ApplyResult PacketIn PacketOut MatchKind FieldInfo
    Outcome ActionInfo TableInfo ProfileInfo ProfileMember ActionProfile Meters colour member kNoAction Shared
    isw_condition isw_steering
    V1Pipeline isw_match kDropPort kMaxParserSteps kParserTimeout
    add sub mul neg bit_not bit_and bit_or bit_xor less less_signed distance shl shr shr_signed
    add_saturating sub_saturating add_saturating_signed sub_saturating_signed resize resize_signed concat slice
    with_slice load_bits assign_object fresh from_limbs to_limbs csum16 api_of isw_program_v1
    found entry key result value condition subject next_value last_value more sum fields low high cell accepted steps
    element items next code
    """.split()  # noqa: SIM905
)
# Members of the generated Program and of its bases, and the parameter of its methods. A global name must not hide them.
_PROGRAM = frozenset(
    """
    p parse verify ingress egress update deparse packet copy seed process forward send groups random packet_bytes
    current_length exited checksum_error multicast_set set_valid set_invalid count elapsed mutex tables counted_tables
    counters registers V1Program ProgramBase clones requests hash_input halt halted log log_to log_context digest_to
    digest_context meters metered_tables profiles value_sets preserve run_waiting pass_again count_pass with_field_list
    clone_ingress clone_egress clone_set next_iteration loop_iterations clock_us now_us digest_id digest_data trace
    trace_to error_name outcome kComparesCopies kRequests kHalts kDigests kEndlessLoops kNumbers kUntouchedBegin
    kUntouchedEnd kOneThread steering conditions steered shared stripe thread_0 of_thread_0 check_stripe
    """.split()  # noqa: SIM905
)
# Names that get the ending _x: macros of C headers look like these, and a P4 name that already ends with _x must differ
# from a name that gets it.
_MACRO = re.compile(r"[A-Z][A-Z0-9_]+|.*_x")
_NUMBERED = re.compile(r"(operand|subject|copy|in)_\d+|(apply|key)_.*")


def _clean(name: str, reserved: frozenset[str]) -> str:
    cleaned = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    # C++ keeps these underscores for itself.
    allowed = re.sub("^_|(?<=_)_", "u_", cleaned)
    if allowed != cleaned or cleaned in reserved or cleaned in _CPLUSPLUS or _MACRO.fullmatch(cleaned):
        return f"{allowed}_x"
    return cleaned


def spell(name: str) -> str:
    """The C++ variable or function for a P4 name."""
    cleaned = _clean(name, _GENERATED)
    return f"{cleaned}_x" if _NUMBERED.fullmatch(cleaned) else cleaned


def spell_global(name: str) -> str:
    """The C++ name of an instance of a control or parser, of a function, or of an object with state."""
    return f"{name}_x" if name in _PROGRAM else spell(name)


def spell_field(name: str) -> str:
    """The C++ name of a field or type."""
    return _clean(name, _MEMBERS)


class Namespace:
    """Makes C++ names that are unique within it."""

    def __init__(self, speller: Callable[[str], str] = spell) -> None:
        self._used: set[str] = set()
        self._speller = speller

    def unique(self, name: str) -> str:
        wanted = self._speller(name)
        chosen = wanted
        number = 2
        while chosen in self._used:
            chosen = f"{wanted}_{number}"
            number += 1
        self._used.add(chosen)
        return chosen


def control_plane_name(declaration: syntax.Declaration, path: str) -> str:
    """The full name in P4Info: the path of the instance, then the @name or the P4 name; `@name(".x")` is absolute."""
    name = declaration.shown_name()
    if name.startswith("."):
        return name[1:]
    return f"{path}.{name}" if path else name
