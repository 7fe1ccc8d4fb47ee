"""FastAPI applications on a database, for test_replicas.py. The pool or engine is the lifespan's: each replica's own.

DATABASE is the address: of PostgreSQL for `with_asyncpg`, of anything that SQLAlchemy takes for `with_sqlalchemy`.
"""

import asyncio
import contextlib
import os
import threading

from fastapi import FastAPI, Request

from gmploop import replicas


def with_asyncpg():
    import asyncpg

    @contextlib.asynccontextmanager
    async def lifespan(app):
        async with asyncpg.create_pool(os.environ["DATABASE"], min_size=1, max_size=3) as pool:
            yield {"pool": pool}

    app = FastAPI(lifespan=lifespan)

    @app.get("/double/{number}")
    async def double(number: int, request: Request):
        async def one(n):
            async with request.state.pool.acquire() as connection, connection.transaction():
                return await connection.fetchrow("select $1::int * 2 as double, pg_backend_pid() as backend", n)
        rows = await asyncio.gather(*(one(number + i) for i in range(8)))
        assert [row["double"] for row in rows] == [2 * (number + i) for i in range(8)]
        return {"replica": replicas.index(), "double": rows[0]["double"], "backends": [row["backend"] for row in rows]}

    return app


def with_sqlalchemy():
    from sqlalchemy import select, text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
    from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

    class Base(DeclarativeBase):
        pass

    class Note(Base):
        __tablename__ = f"notes_{replicas.index()}"
        number: Mapped[int] = mapped_column(primary_key=True)
        words: Mapped[str]

    @contextlib.asynccontextmanager
    async def lifespan(app):
        engine = create_async_engine(os.environ["DATABASE"])
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield {"engine": engine}
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)

    def where(connection):
        """Runs in a greenlet of SQLAlchemy's, which goes back to the loop for each query."""
        threads = []
        for _ in range(3):
            connection.execute(text("select 1"))
            threads.append(threading.get_ident())
        return threads

    @app.get("/note/{number}")
    async def note(number: int, request: Request):
        async with AsyncSession(request.state.engine) as session, session.begin():
            session.add(Note(number=number, words=f"note {number}"))
        async with AsyncSession(request.state.engine) as session:
            words = (await session.scalars(select(Note.words).where(Note.number == number))).one()
        async with request.state.engine.connect() as connection:
            threads = await connection.run_sync(where)
        return {"replica": replicas.index(), "words": words, "stayed": set(threads) == {threading.get_ident()}}

    return app
