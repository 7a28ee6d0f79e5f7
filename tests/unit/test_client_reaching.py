"""Where requests go, and what their headers may hold."""

from __future__ import annotations

import pytest

from keytide.client.protocol.calls import HttpCall
from keytide.client.protocol.reaching import Origin, headers_for
from keytide.errors import CallerError


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "shown"),
    [
        ("http://127.0.0.1:8093", "127.0.0.1", 8093, "", "http://127.0.0.1:8093"),
        ("http://node.example", "node.example", 80, "", "http://node.example"),
        ("https://node.example/a b/ü", "node.example", 443, "/a%20b/%C3%BC", "https://node.example"),
        ("https:" + "//[::1]:80/x%20y", "::1", 80, "/x%20y", "https:" + "//[::1]:80"),
        ("http://bücher.example", "xn--bcher-kva.example", 80, "", "http://xn--bcher-kva.example"),
    ],
)
def test_where_a_request_goes(url: str, host: str, port: int, path: str, shown: str) -> None:
    origin = Origin.of(url, {"Authorization": "Bearer x"})
    assert (origin.host, origin.port, origin.path, origin.url) == (host, port, path, shown)
    assert headers_for(HttpCall("GET", "/", headers={"Accept": "y"}), origin.headers) == {
        "User-Agent": "keytide",
        "Accept-Encoding": "identity",
        "Authorization": "Bearer x",
        "Accept": "y",
    }


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\rb", "ü", "\udcff"])
def test_a_header_holds_one_line(value: str) -> None:
    with pytest.raises(CallerError, match="only ASCII in one line"):
        headers_for(HttpCall("GET", "/", headers={"Last-Event-ID": value}), {})


@pytest.mark.parametrize(
    "host", ["a..example", ".example", "a" * 64 + ".example", "ü" * 70 + ".example", "a b.example"]
)
def test_what_no_host_can_be_called_is_refused_at_once(host: str) -> None:
    with pytest.raises(CallerError, match="names no host"):
        Origin.of(f"http://{host}:8093", {})
