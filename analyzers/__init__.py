"""The analyzers: each turns a trace into figures or findings, and knows nothing of the others."""

if __name__ != "gpuscope.analyzers":
    raise ImportError("import this package as gpuscope.analyzers")
