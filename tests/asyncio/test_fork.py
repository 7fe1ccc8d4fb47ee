"""A process that uses a loop and then forks."""


import pytest

from support import child_output

pytestmark = pytest.mark.timeout(60)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_may_make_loops_of_its_own(loop_kind):
    output = child_output(loop_kind, """
        import warnings
        warnings.simplefilter("ignore")
        loop = new_loop()

        async def use_everything():
            loop = asyncio.get_running_loop()
            await loop.getaddrinfo("localhost", 80)
            await loop.run_in_executor(None, int)
            server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            assert await reader.read() == b""
            writer.close()
            server.close()
            process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
            assert await process.communicate(b"x") == (b"x", None)
            await asyncio.sleep(0.001)
            return "works"

        def fresh():
            mine = new_loop()
            result = mine.run_until_complete(asyncio.wait_for(use_everything(), 10))
            mine.run_until_complete(mine.shutdown_default_executor())
            mine.close()
            return result

        async def parent():
            await use_everything()
            near, far = socket.socketpair()
            reader, writer = await asyncio.open_connection(sock=near)
            child = os.fork()
            if not child:
                asyncio._set_running_loop(None)
                status = 1
                try:
                    status = 0 if fresh() == "works" else 2
                finally:
                    os._exit(status)
            pid, status = await asyncio.get_running_loop().run_in_executor(None, os.waitpid, child, 0)
            print("child", os.waitstatus_to_exitcode(status))
            far.send(b"still here")
            print((await asyncio.wait_for(reader.readexactly(10), 5)).decode())
            print(await use_everything())
            writer.close()
            far.close()

        loop.run_until_complete(parent())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    """)
    assert output == "child 0\nstill here\nworks\n"


def test_an_idle_loop_goes_on_in_a_forked_child(loop_kind):
    output = child_output(loop_kind, """
        loop = new_loop()
        loop.run_until_complete(asyncio.sleep(0.001))
        source, sink = os.pipe()
        loop.add_reader(source, int)
        child = os.fork()
        if not child:
            status = 1
            try:
                loop.run_until_complete(asyncio.wait_for(asyncio.sleep(0.01), 5))
                loop.call_soon_threadsafe(loop.stop)
                loop.run_forever()
                status = 0
            finally:
                os._exit(status)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        seen = []
        loop.add_reader(source, lambda: (seen.append(os.read(source, 9)), loop.stop()))
        loop.call_later(5, loop.stop)
        os.write(sink, b"parent")
        loop.run_forever()
        print(seen)
        loop.remove_reader(source)
        loop.close()
    """)
    assert output == "child 0\n[b'parent']\n"


def test_close_in_a_forked_child_does_not_disturb_the_parent(loop_kind):
    output = child_output(loop_kind, """
        loop = new_loop()
        near, far = socket.socketpair()
        near.setblocking(False)

        async def parent():
            reader, writer = await asyncio.open_connection(sock=near)
            child = os.fork()
            if not child:
                asyncio._set_running_loop(None)
                other = new_loop()
                other.close()
                gc.collect()
                os._exit(0)
            print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            asyncio.get_running_loop().call_later(0.01, far.send, b"data")
            print(await asyncio.wait_for(reader.readexactly(4), 5))
            writer.close()

        loop.run_until_complete(parent())
        child = os.fork()
        if not child:
            loop.close()
            os._exit(0)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(loop.run_until_complete(asyncio.sleep(0.001, "goes on")))
        loop.close()
        far.close()
    """)
    assert output == "child 0\nb'data'\nchild 0\ngoes on\n"
