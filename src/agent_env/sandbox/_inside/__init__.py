"""What runs inside a sandbox, as its first process.

Not imported there: the code is sent to a bare Python. So these modules import nothing but built-in modules and each other
(`_signal`, `_socket` and `_ctypes` instead of `signal`, `socket` and `ctypes`, which take longer to import than all the
rest), run on any CPython from 3.8 on, and `supervisor` comes last. `as_agent` is a program of its own, for verifiers.
"""

MODULES = ("wire", "processes", "sides", "command", "files", "door", "supervisor")
"""In the order in which they import each other."""
