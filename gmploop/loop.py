import asyncio


class Loop(asyncio.SelectorEventLoop):
    pass


def new_event_loop():
    return Loop()
