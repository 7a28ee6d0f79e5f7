"""What can be wrong with a statement, and where: every error carries its place, and shows it with a caret."""

from __future__ import annotations

from typing import Final

from keytide.errors import CallerError

_LOOK: Final = "docs/define-an-index.md and docs/query.md say what is understood"
_WINDOW: Final = 76
"""Characters of a line that are shown at most: behind two blanks they fit into the usual 80, so that the
caret is not below a line that was broken."""


class InvalidStatementError(CallerError):
    """A statement that says nothing Keytide understands.

    Attributes:
        reason: what is wrong, in one line, without the place.
        line: from 1.
        column: from 1, in characters.
        caret: the line of the statement, and below it a caret under the place.
    """

    problem_type = "invalid-statement"
    status = 422

    def __init__(
        self, reason: str, text: str, start: int, end: int | None = None, *, next_step: str = ""
    ) -> None:
        """
        Args:
            text: the whole statement.
            start: where the wrong part begins, a position in `text`.
            end: where it ends (exclusive); one character by default.
        """
        start = max(0, min(start, len(text)))
        self.reason = reason
        self.line = text.count("\n", 0, start) + 1
        self.column = start - (text.rfind("\n", 0, start) + 1) + 1
        self.caret = _caret(text, start, start + 1 if end is None else end)
        super().__init__(
            f"{reason} (line {self.line}, column {self.column})\n{self.caret}",
            next_step=next_step or _LOOK,
            line=self.line,
            column=self.column,
            caret=self.caret,
        )


def quoted_wrongly(text: str, start: int) -> str:
    """What to say when a string stands where a name must, or a name where a string must; "" of anything
    else."""
    match text[start : start + 1]:
        case "'":
            return "In single quotes stands a string; a name stands bare or in double quotes."
        case '"':
            return "In double quotes stands a name; a string stands in single quotes."
    return ""


def _caret(text: str, start: int, end: int) -> str:
    begin = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", start)
    stop = len(text) if stop < 0 else stop
    left = max(begin, start - _WINDOW // 2)
    shown = text[left : min(stop, left + _WINDOW)]
    marks = max(1, min(end, stop, left + _WINDOW) - start)
    printable = "".join(character if character.isprintable() else " " for character in shown)
    return f"  {printable}\n  {' ' * (start - left)}{'^' * marks}"


class QueryElsewhereError(InvalidStatementError):
    """A query, where statements that change the dictionary are taken."""

    problem_type = "ask-a-node"
    status = 421
