"""Show the cache folder, or empty it.

Kept there are the SQLite exports of reports, the columns of large exports, and the answers of
analyzing these, so that asking again takes a fraction of a second. Whatever changed is made anew.
When all of it exceeds the limit, what was not used for longest goes. GPUSCOPE_CACHE_LIMIT sets the
limit, such as 2G; XDG_CACHE_HOME says where the folder is.

For example:

  gpuscope cache            what is kept
  gpuscope cache --json     the same for programs
  gpuscope cache --clear    remove it all
"""

from __future__ import annotations

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gpuscope cache`."""
    parser.add_argument("--clear", action="store_true", help="remove everything that is kept")
    parser.add_argument("--json", action="store_true", help="print it for programs")


def run(args: argparse.Namespace) -> int:
    """Show what is kept, or what was removed."""
    from gpuscope.readers import cache
    from gpuscope.units import format_bytes

    limit = cache.limit_bytes()
    entries = cache.clear() if args.clear else cache.entries()
    by_kind = {kind: [entry for entry in entries if entry.kind == kind] for kind in cache.KINDS}
    sizes = {kind: sum(entry.size_bytes for entry in by_kind[kind]) for kind in cache.KINDS}
    if args.json:
        content = {
            "schema_version": 1,
            "folder": str(cache.base_folder()),
            "limit_bytes": limit,
            "cleared": args.clear,
            "kinds": {
                kind: {"entries": len(by_kind[kind]), "size_bytes": sizes[kind]}
                for kind in cache.KINDS
            },
        }
        print(json.dumps(content, indent=2))
        return 0
    print(f"{'removed from' if args.clear else 'kept in'} {cache.base_folder()}")
    for kind in cache.KINDS:
        print(f"  {kind:<8} {len(by_kind[kind]):>6}   {format_bytes(sizes[kind]):>9}")
    print(f"  {'in all':<8} {len(entries):>6}   {format_bytes(sum(sizes.values())):>9}", end="")
    print("" if args.clear else f"   of {format_bytes(limit)}")
    return 0
