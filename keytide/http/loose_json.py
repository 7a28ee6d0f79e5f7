"""A value as people type it, on a command line or in a query string: JSON, or a plain word, which is a text.

What looks like JSON and is none is refused: taken as a text it would quietly select nothing.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

_LIKE_JSON: Final = re.compile(
    r"""[\[{"]                                      # the beginning of an array, object or string
    |   -?\.?\d[\d_,]*+\.?\d*+\Z                 # one number, as others write it: 1,5  007  1_000  .5
    |   (true|false|null)\Z                        # in other letters: True""",
    re.VERBOSE | re.IGNORECASE,
)
"""What somebody who writes it takes for JSON. Dates, addresses, NaN, 12e999 and the like are texts."""


class BrokenJsonError(Exception):
    """It looks like JSON, and is none."""


def json_or_text(text: str) -> Any:
    """The value.

    Raises:
        BrokenJsonError: it looks like JSON, and is none.
        RecursionError: it is JSON that is nested too deep.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        if _LIKE_JSON.match(text.strip()):
            raise BrokenJsonError(str(error)) from error
        return text
