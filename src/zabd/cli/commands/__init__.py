"""The subcommands of `zabctl`, one module for each family."""
