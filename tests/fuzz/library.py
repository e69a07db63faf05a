# SPDX-License-Identifier: Apache-2.0
"""Programs whose core.p4 or v1model.p4 is another one: each must compile or raise a CompileError.

python -m tests.fuzz.library --seeds 1..10000
"""

import argparse
import random
import re
import sys
from functools import cache
from pathlib import Path

from inagg_switch.compiler.parse.preprocess import preprocess
from tests.fuzz.front_end import compile_preprocessed
from tests.fuzz.seeds import seeds_of

PROGRAM = Path(__file__).with_name("library.p4")
_MARKER = re.compile(r'^# \d+ "(.*)"$', re.MULTILINE)
_TOKEN = re.compile(r'^# .*$|[A-Za-z_]\w*|\d+|"[^"]*"|\s+|.', re.MULTILINE)
_DECLARATION = re.compile(
    r"^(?:extern|enum|struct|parser|control|package|error|match_kind|const|action)\b", re.MULTILINE
)
_TYPES = ["bit<8>", "bit<33>", "int<4>", "int", "bool", "error", "string", "void", "h_t", "CloneType", "T"]


@cache
def parts() -> tuple[str, str]:
    """The preprocessed text of core.p4 and v1model.p4, and that of the program."""
    text = preprocess(PROGRAM).text
    own = next(m for m in _MARKER.finditer(text) if m[1] == str(PROGRAM))
    return text[: own.start()], text[own.start() :]


def mutant(seed: int) -> str:
    """The program with another library; the same for the same seed."""
    generator = random.Random(seed)
    library, program = parts()
    for _ in range(generator.choice((1, 1, 1, 2, 3))):
        library, program = generator.choice(_CHANGES)(generator, library, program)
    return library + program


def _tokens(text: str) -> tuple[list[str], list[int]]:
    """The tokens, and the places of those that are words."""
    tokens = _TOKEN.findall(text)
    return tokens, [i for i, t in enumerate(tokens) if re.match(r"[A-Za-z_]", t)]


def _rename_one(generator: random.Random, library: str, program: str) -> tuple[str, str]:
    tokens, words = _tokens(library)
    tokens[generator.choice(words)] = "other"
    return "".join(tokens), program


def _rename_everywhere(generator: random.Random, library: str, program: str) -> tuple[str, str]:
    tokens, words = _tokens(library)
    word = re.compile(rf"\b{tokens[generator.choice(words)]}\b")
    return word.sub("other", library), word.sub("other", program)


def _retype(generator: random.Random, library: str, program: str) -> tuple[str, str]:
    """Gives a parameter or field another type."""
    found = list(
        re.finditer(r"(?<=[(,;{ ])(?:bit<\d+>|bool|error|string|[A-Za-z_]\w*)(?= \w+[,;)])", library)
    )
    place = generator.choice(found)
    return library[: place.start()] + generator.choice(_TYPES) + library[place.end() :], program


def _redirect(generator: random.Random, library: str, program: str) -> tuple[str, str]:
    """Gives a parameter another direction."""
    found = list(re.finditer(r"(?<=[(,])\s*(?:inout |in |out )?(?=\w+(?:<[\w, ]*>)? \w+[,)])", library))
    place = generator.choice(found)
    direction = generator.choice(("", "in ", "out ", "inout "))
    return f"{library[: place.start()]} {direction}{library[place.end() :]}", program


def _remove_parameter(generator: random.Random, library: str, program: str) -> tuple[str, str]:
    found = list(re.finditer(r"(?<=\()[^(),]+,\s*|,[^(),{}]+(?=\))|(?<=\()[^(),]+(?=\);)", library))
    place = generator.choice(found)
    return library[: place.start()] + library[place.end() :], program


def _add_parameter(generator: random.Random, library: str, program: str) -> tuple[str, str]:
    places = [m.end() for m in re.finditer(r"\w\(", library)]
    at = generator.choice(places)
    comma = "" if library[at] == ")" else ", "
    return f"{library[:at]}in {generator.choice(_TYPES)} more{comma}{library[at:]}", program


def _remove_word(generator: random.Random, library: str, program: str) -> tuple[str, str]:
    tokens, words = _tokens(library)
    tokens[generator.choice(words)] = ""
    return "".join(tokens), program


def _remove_declaration(generator: random.Random, library: str, program: str) -> tuple[str, str]:
    starts = [m.start() for m in _DECLARATION.finditer(library)] + [len(library)]
    first = generator.randrange(len(starts) - 1)
    return library[: starts[first]] + library[starts[first + 1] :], program


def _remove_line(generator: random.Random, library: str, program: str) -> tuple[str, str]:
    lines = library.split("\n")
    lines[generator.randrange(len(lines))] = ""
    return "\n".join(lines), program


def _remove_use(generator: random.Random, library: str, program: str) -> tuple[str, str]:
    """Removes a statement of the program, so that the compiler comes to the others."""
    statements = list(re.finditer(r"(?<=[;{}])[^;{}#]+\([^;#]*\);", program))
    place = generator.choice(statements)
    return library, program[: place.start()] + program[place.end() :]


_CHANGES = (
    _rename_one,
    _rename_everywhere,
    _retype,
    _redirect,
    _remove_parameter,
    _add_parameter,
    _remove_word,
    _remove_declaration,
    _remove_line,
    _remove_use,
)


def main() -> int:
    """The command line; returns for how many programs the compiler failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=seeds_of, default=range(1, 1001), help="N or FIRST..LAST")
    parser.add_argument("--show", action="store_true", help="print the programs")
    arguments = parser.parse_args()
    wrong = accepted = 0
    for seed in arguments.seeds:
        text = mutant(seed)
        if arguments.show:
            print(text)
        result = compile_preprocessed(PROGRAM.name, text)
        accepted += result.accepted
        if result.wrong:
            wrong += 1
            print(f"seed {seed}: {result.wrong}", flush=True)
    print(f"{wrong} wrong; {accepted} accepted")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 100))
