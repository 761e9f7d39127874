"""What runs inside a sandbox, as its first process.

Not imported there: the code is sent to a bare Python. So these modules import nothing but built-in modules and each other
(`_signal` and `_ctypes` instead of `signal` and `ctypes`, which take longer to import than all the rest), run on any
CPython from 3.8 on, and `supervisor` comes last.
"""

MODULES = ("wire", "processes", "command", "files", "supervisor")
"""In the order in which they import each other."""
