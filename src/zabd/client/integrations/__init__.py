"""Where a client meets other people's systems: metrics, traces, web applications, message queues.

Nothing in here is imported by anything else of zabd, and each module needs what its name says: see
the extras `metrics` and `opentelemetry`.
"""

__all__: list[str] = []
