"""The asyncio client, its blocking facade and its recipes."""
