"""The words every room shares: zxids, ids, paths, ACLs, stats, ops, results and errors."""
