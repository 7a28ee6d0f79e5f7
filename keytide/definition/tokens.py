"""A cursor over the tokens of a statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sqlglot.tokenizer_core import Token, TokenType

from keytide.definition.errors import InvalidStatementError, quoted_wrongly

_QUOTED = (TokenType.IDENTIFIER, TokenType.STRING)
_OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
_CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)
_NAME_ENDS = (*_OPENING, *_CLOSING, TokenType.COMMA, TokenType.SEMICOLON, TokenType.STRING, TokenType.EQ)


class Cursor:
    """Reads tokens from the left; words match in any case, unless quoted."""

    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        self.text = text
        self._tokens = tokens
        self._next = 0

    @property
    def next_token(self) -> Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def error(
        self, reason: str, where: Token | Sequence[Token] | None = None, *, next_step: str = ""
    ) -> InvalidStatementError:
        """An error at a token, or from the first to the last of several; at the next token (or the end)
        without."""
        where = where or self.next_token
        if where is None:
            return InvalidStatementError(reason, self.text, len(self.text.rstrip()), next_step=next_step)
        first, last = (where, where) if isinstance(where, Token) else (where[0], where[-1])
        return InvalidStatementError(reason, self.text, first.start, last.end + 1, next_step=next_step)

    def _matched(self, words: tuple[str, ...]) -> int:
        """How many tokens say `words` (sqlglot makes one token of some pairs); 0 when they do not stand
        here."""
        at, rest = self._next, list(words)
        while rest:
            if at >= len(self._tokens) or self._tokens[at].token_type in _QUOTED:
                return 0
            said = self._tokens[at].text.upper().split()
            if not said or said != rest[: len(said)]:
                return 0
            rest = rest[len(said) :]
            at += 1
        return at - self._next

    def peek(self, *words: str) -> bool:
        return self._matched(words) > 0

    def accept(self, *words: str) -> bool:
        """Step over `words` if they stand here."""
        count = self._matched(words)
        self._next += count
        return count > 0

    def expect(self, word: str, *, next_step: str = "") -> None:
        if not self.accept(word):
            token = self.next_token
            found = f", not {token.text!r}" if token else ""
            raise self.error(f"{word} must stand here{found}", next_step=next_step)

    def peek_clause(self, clause: str) -> bool:
        """Whether a clause begins here, rather than a field of that name stands in an expression."""
        count = self._matched(tuple(clause.split()))
        if not count or (self._next and self._tokens[self._next - 1].token_type == TokenType.DOT):
            return False
        follower = self._tokens[self._next + count] if self._next + count < len(self._tokens) else None
        if clause in ("INCLUDE", "WITH"):
            return follower is not None and follower.token_type == TokenType.L_PAREN
        return True

    def take_until(self, stop: Callable[[Cursor], bool]) -> Sequence[Token]:
        """The tokens up to where `stop` says so, outside of all brackets."""
        begin, open_ = self._next, 0
        while (token := self.next_token) is not None and (open_ or not stop(self)):
            open_ += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
            self._next += 1
        return self._tokens[begin : self._next]

    def parenthesised(self, what: str) -> Iterator[Sequence[Token]]:
        """The runs of tokens between the commas of `( ..., ... )`, none of them empty."""
        opening = self.next_token
        if opening is None or opening.token_type != TokenType.L_PAREN:
            raise self.error(f"a list in parentheses must stand here: {what}")
        self._next += 1
        runs: list[Sequence[Token]] = []
        while True:
            run = self.take_until(lambda at: at._at(TokenType.COMMA) or at._at(TokenType.R_PAREN))
            if self.next_token is None:
                raise self.error("this parenthesis is not closed", opening)
            if not run:
                raise self.error(f"{what} must stand here")
            runs.append(run)
            self._next += 1
            if self._tokens[self._next - 1].token_type == TokenType.R_PAREN:
                return iter(runs)

    def _at(self, kind: TokenType) -> bool:
        token = self.next_token
        return token is not None and token.token_type == kind

    def name(self, what: str) -> Sequence[Token]:
        """The tokens of a name: one that is quoted, or all that stand without a space between them
        (my-topic.v1)."""
        token = self.next_token
        if token is None or token.token_type in _NAME_ENDS:
            hint = quoted_wrongly(self.text, token.start) if token else ""
            raise self.error(f"{what} must stand here", next_step=hint)
        begin = self._next
        self._next += 1
        while token.token_type != TokenType.IDENTIFIER and (follower := self.next_token) is not None:
            if follower.start != self._tokens[self._next - 1].end + 1 or follower.token_type in (
                *_NAME_ENDS,
                *_QUOTED,
            ):
                break
            self._next += 1
        return self._tokens[begin : self._next]

    def joined(self, tokens: Sequence[Token]) -> str:
        """The name that `tokens` say, as it was written."""
        if len(tokens) == 1 and tokens[0].token_type == TokenType.IDENTIFIER:
            return tokens[0].text
        return self.text[tokens[0].start : tokens[-1].end + 1]
