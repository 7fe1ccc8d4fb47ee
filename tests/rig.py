"""One call that makes no sense, made on stock's loop and on gmploop's: rows of a table, and their comparison."""

import asyncio
import contextlib
import inspect
import os
import socket
import ssl

from support import LOOPS, pending, tcp_pair, turns


class Rig:
    """A loop and things to call it with, all of which are closed in the end."""

    def __init__(self, loop, stack, folder):
        self.loop, self.stack, self.folder = loop, stack, folder

    def keep(self, thing):
        self.stack.callback(thing.close)
        return thing

    def pair(self):
        near, far = tcp_pair()
        self.keep(far)
        return self.keep(near)

    def udp(self):
        sock = self.keep(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sock.setblocking(False)
        return sock

    def listener(self):
        sock = self.keep(socket.create_server(("127.0.0.1", 0)))
        sock.setblocking(False)
        return sock

    def fresh(self, family=socket.AF_INET):
        sock = self.keep(socket.socket(family))
        sock.setblocking(False)
        return sock

    def blocking(self):
        sock = self.pair()
        sock.setblocking(True)
        return sock

    def closed(self):
        sock = socket.socket()
        sock.close()
        return sock

    def tls_socket(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return self.keep(context.wrap_socket(self.fresh(), server_hostname="x", do_handshake_on_connect=False))

    def file(self, mode="rb", content=b"content"):
        path = self.folder / "file"
        path.write_bytes(content)
        return self.keep(open(path, mode))

    def closed_file(self):
        file = self.file()
        file.close()
        return file

    def pipe(self):
        source, sink = os.pipe()
        self.keep(open(sink, "wb", 0))
        return self.keep(open(source, "rb", 0))

    async def transport(self, sock=None):
        transport, _ = await self.loop.create_connection(asyncio.Protocol, sock=sock or self.pair())
        self.stack.callback(transport.abort)
        return transport

    def debug(self):
        self.loop.set_debug(True)
        return self.loop


async def attempt(row, r):
    """The class of what the row raises, or of what it returns; and the message."""
    try:
        result = row(r)
        if inspect.isawaitable(result):
            result = await asyncio.wait_for(result, 5)
    except (Exception, asyncio.CancelledError) as exc:
        return type(exc), str(exc)
    if isinstance(result, asyncio.Handle):
        r.loop.call_later(0.001, result.cancel)
        return asyncio.Handle, ""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], asyncio.BaseTransport):
        getattr(result[0], "abort", result[0].close)()
        return asyncio.BaseTransport, ""
    if isinstance(result, asyncio.AbstractServer):
        result.close()
        return asyncio.AbstractServer, ""
    return result if isinstance(result, (bool, str, bytes, tuple, list)) else type(result), ""


def outcomes(row, kind, folder):
    """What the row comes to on a loop of this kind, with what the exception handler heard; and the message."""
    loop, heard = LOOPS[kind](), []
    loop.set_debug(False)  # rows that want it switch it on
    loop.set_exception_handler(lambda _, context: heard.append(type(context.get("exception")).__name__))

    async def main():
        with contextlib.ExitStack() as stack:
            r = Rig(loop, stack, folder)
            r.heard = heard
            told = await attempt(row, r)
            await asyncio.sleep(0.002)
            assert await asyncio.sleep(0, "goes on") == "goes on"
        await turns(3)
        for task in pending(loop):
            if task is not asyncio.current_task():
                task.cancel()
        await turns(2)
        return told
    try:
        told, message = loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
    return (told, sorted(heard)), message


def compare(row, folder):
    """The row must come to the same on both. Where it breaks stock's loop, gmploop may refuse or take it."""
    try:
        expected, stock_message = outcomes(row, "asyncio", folder)
    except Exception:
        expected, stock_message = None, ""
    found, message = outcomes(row, "gmploop", folder)
    assert expected is None or found == expected, message
    assert message or not stock_message, "an exception without a message"
