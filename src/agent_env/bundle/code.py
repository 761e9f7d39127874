"""Python files of a bundle: each imported once per process, under a private name.

A file may import its neighbours relative to itself (`from .rules import price`, `from ..lib.rules import price`): the
bundle's folder is a package of its own for them, and two bundles with an `envs/store.py` each do not meet.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from types import ModuleType

from agent_env.bundle._suggest import names_or_closest
from agent_env.bundle.files import BundleFiles, MisfitError
from agent_env.bundle.raised import message_of, raised_at
from agent_env.errors import BundleError, Problem
from agent_env.outcome import Place

__all__ = ["PythonRef", "parse_python"]


@dataclass(frozen=True, slots=True)
class PythonRef:
    """A name in a Python file of a bundle, written `envs/grid.py:Grid`."""

    root: Path
    """The bundle's folder, resolved."""
    path: Path
    """The file, relative to it."""
    name: str
    """The class or function in the file."""
    written_at: tuple[Path, int] = (Path("bundle.yaml"), 1)
    """The file and line that names it."""

    def __str__(self) -> str:
        return f"{self.path.as_posix()}:{self.name}"

    def module(self) -> ModuleType:
        """Import the file, once per process.

        Raises:
            BundleError: When it does not parse or raises while it is imported; the line is the file's.
        """
        try:
            return import_module(".".join((_package(self.root), *self.path.with_suffix("").parts)))
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # the bundle's own code: an import may raise anything, SystemExit too
            raise self._import_error(exc) from exc

    def load(self) -> object:
        """Import the file, once per process, and return what the name stands for.

        Raises:
            BundleError: When the file cannot be imported (see `module`), or has no such name: the line is where the
                reference is written.
        """
        module = self.module()
        try:
            return getattr(module, self.name)
        except AttributeError:
            own = [name for name, value in vars(module).items() if not name.startswith("_") and self._is_own(value)]
            path, line = self.written_at
            what = f"{self.path.as_posix()} has no '{self.name}'"
            fix = names_or_closest(self.name, own) if own else f"define {self.name} in it"
            raise BundleError([Problem(path=path, line=line, what=what, fix=fix)]) from None
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # a module may have a __getattr__ of its own
            raise self._import_error(exc, doing=f"looking for '{self.name}' in it") from exc

    def _is_own(self, value: object) -> bool:
        """Whether the bundle defines it, rather than what the bundle imports."""
        module = getattr(value, "__module__", None)
        return callable(value) and isinstance(module, str) and module.startswith(f"{_package(self.root)}.")

    def _import_error(self, exc: BaseException, *, doing: str = "importing it") -> BundleError:
        place = raised_at(exc, self.root) or Place(path=self.path, line=1)
        fix = "correct the file so that it can be imported"
        message = message_of(exc)
        if isinstance(exc, SyntaxError):
            message = exc.msg
            fix = "correct the syntax"
        elif isinstance(exc, ModuleNotFoundError):
            own = _without_package(exc.name or "")
            fix = self._how_to_import(own) if own == exc.name else "add the file, or correct the name"
            message = f"no module named '{own}'"
        elif isinstance(exc, ImportError):
            message = _without_package(message).replace(f" ({exc.path})", "")
        what = " ".join(f"{doing} raised {type(exc).__name__}: {message}".split()).removesuffix(":")
        if isinstance(exc, SyntaxError):
            what = f"{type(exc).__name__}: {message}"
        return BundleError([Problem(path=place.path, line=place.line, what=what, fix=fix)])

    def _how_to_import(self, module: str) -> str:
        first = module.partition(".")[0]
        if (self.path.parent / f"{first}.py") != self.path and (self.root / self.path.parent / f"{first}.py").is_file():
            return f"import it relative to this file: from .{module} import ..."
        if (self.root / first).is_dir() or (self.root / f"{first}.py").is_file():
            dots = "." * len(self.path.parts)
            return f"import it relative to this file: from {dots}{module} import ..."
        return "install the package that has it"


def parse_python(files: BundleFiles, written: str, where: tuple[Path, int], *, default: str | None = None) -> PythonRef:
    """Read a reference such as `envs/grid.py:Grid`.

    Args:
        files: The bundle's files.
        written: What stands in the bundle file.
        where: The file and line it stands on.
        default: The name to take when none is written.

    Raises:
        MisfitError: When it is no such reference, or the file is not there.
    """
    path_text, colon, name = written.partition(":")
    if not colon and default is not None:
        name = default
    if not path_text.endswith(".py"):
        raise MisfitError(f"'{written}' is not a Python file", "write it as folder/file.py:name")
    if not name.isidentifier():
        raise MisfitError(f"'{written}' names nothing in the file", f"write it as {path_text}:name")
    path = files.find(path_text)
    if any("." in part for part in path.with_suffix("").parts):
        raise MisfitError(f"'{path_text}' has a dot in a name", "rename it: Python cannot import it")
    return PythonRef(files.root, path, name, where)


def _package(root: Path) -> str:
    """Return the name of the private package whose folder is the bundle's, made when first asked for."""
    name = f"_agent_env_bundle_{blake2b(str(root).encode(), digest_size=6).hexdigest()}"
    if name not in sys.modules:
        package = ModuleType(name, f"The Python files of the bundle at {root}.")
        package.__path__ = [str(root)]
        sys.modules.setdefault(name, package)
    return name


def _without_package(text: str) -> str:
    """Take the private package's name out of a message for a person."""
    start = text.find("_agent_env_bundle_")
    while start != -1:
        end = start + len("_agent_env_bundle_") + 12
        text = text[:start] + text[end:].removeprefix(".")
        start = text.find("_agent_env_bundle_")
    return text
