"""Real programs on gmploop, and on asyncio's own loop as a check of the tests themselves."""
