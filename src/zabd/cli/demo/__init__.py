"""The main job on real processes: duplicated requests, a dead leader, a frozen holder."""
