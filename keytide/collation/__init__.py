"""Index keys as bytes: encodings compare bytewise as their keys compare, and can be read back.

Theory of operation
===================
A key is a tuple of parts, each a JSON value or MISSING. Across types: missing < null <
false < true < number < string < array < object (the JSON collation of CouchDB and Couchbase). Numbers
compare by value exactly, whether written as integer or float; strings by code point, which is the order of
their UTF-8; arrays element by element, a prefix first; objects by number of members, then by sorted names,
then by the values in the order of the names.

Each part becomes one tag byte and a body that says itself where it ends (layouts in `layout`):

    missing, null, false, true    tag
    number                        tag, double rounded down (8 bytes), residual (1 byte when exact)
    string                        tag, UTF-8 with NUL as 00 FF, 00 01
    array                         tag, elements, END (lower than every tag, so that a prefix comes first)
    object                        tag, count, names in order (each ended by 00 01), values in the same order

No code word is a prefix of another one, so the first byte in which two keys differ lies inside the codes of
both, and nothing that follows (further parts, a raw document id, whatever its bytes) can change their
order. For the same reason inverting every byte of a part exactly reverses its order: that is DESC. (The
technique is that of FoundationDB's tuple layer and of Couchbase's collatejson; the double with a residual
replaces their decimal and per-type number forms, so that the usual number is one `struct.pack`.)

An *entry key* is the canonical key followed by the document id as raw UTF-8. 5 and 5.0 are one number and
have one canonical key; which numbers were written as floats is in the key's *forms* (`forms`), which travel
in the entry's value (`keytide.model.entry`).

Imported by `keytide.structure`, `keytide.definition`, `keytide.query` and the pure parts of all services, as
`projector.core` and `indexer.scan.aggregate`.

Errors: `NotIndexableError` (a CallerError and a ValueError) for a value that has no place in the order: a
non-finite float, a lone surrogate, nesting beyond MAX_DEPTH, something that is not JSON. Bytes that are no
key are an InvariantViolationError.
"""

from keytide.collation.decode import decode_key, decode_keys, skip_key
from keytide.collation.encode import encode_key, encode_part
from keytide.collation.forms import apply_forms, key_forms
from keytide.collation.layout import (
    MAX_DEPTH,
    MISSING,
    Json,
    Missing,
    NotIndexableError,
    Value,
    to_json_value,
)
from keytide.collation.spans import Span, equals_span, merge_spans, prefix_span, span, successor
from keytide.collation.told import LONGEST_TOLD, told_key

__all__ = [
    "LONGEST_TOLD",
    "MAX_DEPTH",
    "MISSING",
    "Json",
    "Missing",
    "NotIndexableError",
    "Span",
    "Value",
    "apply_forms",
    "decode_key",
    "decode_keys",
    "encode_key",
    "encode_part",
    "equals_span",
    "key_forms",
    "merge_spans",
    "prefix_span",
    "skip_key",
    "span",
    "successor",
    "to_json_value",
    "told_key",
]
