"""The two commands: `zabd`, the daemon, and `zabctl`, everything else."""
