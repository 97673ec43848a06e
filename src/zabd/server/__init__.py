"""The asyncio host of a replica: it moves bytes and performs effects, and decides nothing."""
