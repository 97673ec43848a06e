"""Real ensembles and fault controls for test suites, as a pytest plugin."""
