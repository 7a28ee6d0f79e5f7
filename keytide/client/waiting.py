"""What the two clients differ in: how they wait. Everything else is written once.

Theory of operation
===================
What a client does is a flow (`keytide.client.protocol.calls`), and a shell carries it out: `Shell` by
waiting, `AsyncShell` on an event loop. So a method is written as one that makes a flow, in a class that both
clients share; `FlowMethod` turns it into an ordinary method in a `SyncFace`, and into a coroutine in an
`AsyncFace`. Type checkers see the same by the overloads: `Client.count(...)` is a `Count`,
`AsyncClient.count(...)` is to be awaited, and both have the arguments that were written down once.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import update_wrapper
from types import MethodType, TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from keytide.client.protocol.calls import Flow
from keytide.client.transports import AsyncShell, Shell

ArgsP = ParamSpec("ArgsP")
ResultT = TypeVar("ResultT")
ItemT = TypeVar("ItemT")
NextPart = Callable[[], Flow[ResultT | None]]
"""Makes the flow to the next part of something; None at the end."""


class SyncFace:
    """Of a class for programs that wait."""

    _shell: Shell


class AsyncFace:
    """Of a class for event loops."""

    _shell: AsyncShell


class FlowMethod(Generic[ArgsP, ResultT]):
    """A method that is carried out as its class waits, from one that makes its flow."""

    def __init__(self, flow: Callable[Concatenate[Any, ArgsP], Flow[ResultT]]) -> None:
        def waits(self: SyncFace, *args: ArgsP.args, **kwargs: ArgsP.kwargs) -> ResultT:
            return self._shell.run(flow(self, *args, **kwargs))

        async def awaits(self: AsyncFace, *args: ArgsP.args, **kwargs: ArgsP.kwargs) -> ResultT:
            return await self._shell.run(flow(self, *args, **kwargs))

        _named(self, flow)
        self._waits, self._awaits = _as(flow, waits), _as(flow, awaits)

    @overload
    def __get__(self, one: None, owner: type) -> Self: ...
    @overload
    def __get__(self, one: SyncFace, owner: type) -> Callable[ArgsP, ResultT]: ...
    @overload
    def __get__(self, one: AsyncFace, owner: type) -> Callable[ArgsP, Coroutine[Any, Any, ResultT]]: ...
    def __get__(self, one: Any, owner: type) -> Any:
        return _bound(one, self._awaits if issubclass(owner, AsyncFace) else self._waits)


class FlowStream(Generic[ArgsP, ResultT]):
    """A generator that waits as its class does, from a method that makes the flow to each next part. What
    still is open at its end is closed by the flow of `_stop`."""

    def __init__(self, parts: Callable[Concatenate[Any, ArgsP], NextPart[ResultT]]) -> None:
        def waits(self: Any, *args: ArgsP.args, **kwargs: ArgsP.kwargs) -> Iterator[ResultT]:
            following = parts(self, *args, **kwargs)
            try:
                while (part := self._shell.run(following())) is not None:
                    yield part
            finally:
                self._shell.run(self._stop())

        async def awaits(
            self: Any, *args: ArgsP.args, **kwargs: ArgsP.kwargs
        ) -> AsyncGenerator[ResultT, None]:
            following = parts(self, *args, **kwargs)
            try:
                while (part := await self._shell.run(following())) is not None:
                    yield part
            finally:
                await self._shell.run(self._stop())

        _named(self, parts)
        self._waits, self._awaits = _as(parts, waits, "Iterator"), _as(parts, awaits, "AsyncGenerator")

    @overload
    def __get__(self, one: None, owner: type) -> Self: ...
    @overload
    def __get__(self, one: SyncFace, owner: type) -> Callable[ArgsP, Iterator[ResultT]]: ...
    @overload
    def __get__(self, one: AsyncFace, owner: type) -> Callable[ArgsP, AsyncGenerator[ResultT, None]]: ...
    def __get__(self, one: Any, owner: type) -> Any:
        return _bound(one, self._awaits if issubclass(owner, AsyncFace) else self._waits)


class SyncContext(SyncFace):
    """For `with`: `_enter` and `_leave` make the flows."""

    _enter: Callable[[], Flow[None]]
    _leave: Callable[[], Flow[None]]

    def __enter__(self) -> Self:
        self._shell.run(self._enter())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shell.run(self._leave())


class AsyncContext(AsyncFace):
    """For `async with`: as `SyncContext`."""

    _enter: Callable[[], Flow[None]]
    _leave: Callable[[], Flow[None]]

    async def __aenter__(self) -> Self:
        await self._shell.run(self._enter())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._shell.run(self._leave())


class SyncIterator(SyncFace, Generic[ItemT]):
    """For `for`: the flow of `_fetch` adds to `_items`, unless there is nothing more."""

    _items: deque[ItemT]
    _begin: Callable[[], None]
    _fetch: Callable[[], Flow[None]]

    def __iter__(self) -> Self:
        self._begin()
        return self

    def __next__(self) -> ItemT:
        try:
            return self._items.popleft()
        except IndexError:
            self._shell.run(self._fetch())
        if not self._items:
            raise StopIteration
        return self._items.popleft()


class AsyncIterator(AsyncFace, Generic[ItemT]):
    """For `async for`: as `SyncIterator`."""

    _items: deque[ItemT]
    _begin: Callable[[], None]
    _fetch: Callable[[], Flow[None]]

    def __aiter__(self) -> Self:
        self._begin()
        return self

    async def __anext__(self) -> ItemT:
        try:
            return self._items.popleft()
        except IndexError:
            await self._shell.run(self._fetch())
        if not self._items:
            raise StopAsyncIteration
        return self._items.popleft()


def _as(written: Callable[..., Any], made: Any, form: str = "") -> Any:
    """A method with the name, words and arguments of the one that makes flows, and with the flow's result."""
    signature = inspect.signature(written)
    result = str(signature.return_annotation).partition("[")[2].removesuffix("]")
    _named(made, written)
    shown = f"{form}[{result}]" if form else result
    made.__signature__ = signature.replace(return_annotation=shown)
    made.__annotations__ = {**written.__annotations__, "return": shown}
    return made


def _named(made: Any, written: Callable[..., Any]) -> None:
    update_wrapper(made, written)


def _bound(one: Any, method: Any) -> Any:
    return method if one is None else MethodType(method, one)
