"""A recorder of gpuscope's own, through CUPTI: for where Nsight Systems is missing or forbidden.

In the recorded program, with the standard library alone::

    launcher     starts a script in its own interpreter      (context: ``with gpuscope.record``)
    collector    gives CUPTI buffers in a mapped file        library: libcupti through ctypes
    spool        the folder all this lies in                 layout: the records in memory

Outside of it, or afterwards::

    program      runs a Python program under the launcher
    export       writes the records as SQLite                schema, names: as Nsight Systems does

The Python package ``cupti-python`` is not used: its callbacks make a Python object of every record
in the program's own interpreter, under its lock, while the program runs.
"""
