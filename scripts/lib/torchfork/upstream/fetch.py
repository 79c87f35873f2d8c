"""Official wheels through the user's pip; only what the pins list gets into the cache.

Which wheel `torch==2.13.0` means is for the user's index settings to say: a CUDA build from one
index, a CPU build from another. So pip is asked once for each state of those settings, and what it
gave is kept by its sha256; later runs with the same settings use the cached wheel without any
network, and get the same one even when the index has changed. With other settings pip is asked
again: a wheel that happens to be in the cache is never preferred to what pip would give.

Of a release that is not pinned yet, pip resolves each wheel without fetching it and reports the
sha256 that the index lists.
"""

from __future__ import annotations

import json
import platform
import re
import threading
import zipfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from packaging.version import InvalidVersion, Version

from ..errors import DownloadError, HashMismatchError, ToolMissingError
from ..util import files, memo, pip, process
from .base import Interpreter
from .pins import Release, Releases, WheelPin, python_number
from .wheel import Opening, hashed

Progress = Callable[[int], None]


def fetch_wheel(release: Release, opening: Opening, progress: Progress | None = None) -> Path:
    """The official wheel of a release for the interpreter, from the cache or through pip.

    progress: called now and then with the number of bytes that have come in.
    """
    interpreter, cache = opening.interpreter, opening.cache
    _check_python(release, interpreter)
    settings = pip.settings_key(interpreter.executable.parent.parent)
    key = files.sha256_text(release.version, interpreter.tag, platform.machine(), settings)[:32]
    note = cache / "choices" / f"{key}.json"
    with _lock(release, cache):
        chosen = memo.recall(note, key, str)
        pins = [pin for pin in release.wheels if pin.sha256 == chosen]
        if cached := _intact(pins, cache):
            return cached[0]
        wheel = _pinned_meanwhile(release, opening) or _download(release, opening, progress)
        memo.keep(note, key, wheel.parent.name)
        return wheel


def fetch_smallest(release: Release, opening: Opening, progress: Progress | None = None) -> Path:
    """The smallest wheel of a release, whatever machine it is for; another where that fails.

    Enough for checks that run nothing of it: YAML, generator, headers and the exported names are
    those of every wheel of the release.
    """
    pins = sorted(release.wheels, key=lambda pin: _weight(pin, opening.interpreter))
    cached = _intact(pins, opening.cache)
    if cached and "macosx" in cached[0].name:
        return cached[0]
    name = pins[0].name
    tags = ["--platform", name.platform, *_pip_tags(name.interpreter)]
    try:
        with _lock(release, opening.cache):
            return _download(release, opening, progress, tags)
    except DownloadError:
        if cached:  # any other of the release does as well, only slower
            return cached[0]
        raise


def _weight(pin: WheelPin, interpreter: Interpreter) -> tuple[int, bool, str]:
    """macOS wheels are a fifth of a CUDA build's size, Linux ones for ARM often half of it."""
    platforms = ("macosx", "aarch64", "")
    rank = next(i for i, text in enumerate(platforms) if text in pin.name.platform)
    return rank, pin.name.interpreter != interpreter.tag, pin.name.interpreter


def _pip_tags(tag: str) -> list[str]:
    """pip's options for another interpreter than the one it runs in: 'cp311', 'cp314t'."""
    number = python_number(tag)
    return ["--implementation", "cp", "--python-version", str(number), "--abi", tag]


def cached_wheels(release: Release, interpreter: Interpreter, cache: Path) -> list[Path]:
    """Wheels of this release for this interpreter in the cache."""
    fitting = release.wheels_for(interpreter.tag, platform.system(), platform.machine())
    return [path for pin in fitting if (path := _place(cache, pin)).is_file()]


def _lock(release: Release, cache: Path) -> AbstractContextManager[None]:
    version = release.version
    return files.lock(cache / "locks" / f"fetch-{version}.lock", f"fetching torch {version}")


def _place(cache: Path, pin: WheelPin) -> Path:
    return cache / "wheels" / pin.sha256 / pin.file


def _intact(pins: Sequence[WheelPin], cache: Path) -> list[Path]:
    """Those in the cache, hashed anew where size or time has changed; damaged ones left out."""
    places = [path for pin in pins if (path := _place(cache, pin)).is_file()]
    return [path for path in places if hashed(path, cache) == path.parent.name]


def _pinned_meanwhile(release: Release, opening: Opening) -> Path | None:
    """A wheel that pip gave earlier and that was refused then for lack of a pin."""
    for path in sorted((opening.cache / "unpinned").glob("*/torch-*.whl")):
        pinned = opening.pins.by_sha256(path.parent.name)
        tag = opening.interpreter.tag
        if pinned and pinned[0] == release and pinned[1].name.interpreter == tag:
            return _admit(path, release, opening)
    return None


def _check_python(release: Release, interpreter: Interpreter) -> None:
    system, machine = platform.system(), platform.machine()
    if release.wheels_for(interpreter.tag, system, machine):
        return
    tags = release.python_tags(system, machine)
    if tags:
        raise ToolMissingError(
            f"torch {release.version} has no official wheel for Python {interpreter.version}",
            where=str(interpreter.executable),
            why=f"its wheels are for {', '.join(tags)}, and this Python is {interpreter.tag}",
            next="give one of these with --python, or another release with --torch",
        )
    raise ToolMissingError(
        f"torch {release.version} has no official wheel for {system} on {machine}",
        next="build from source instead: --from-source",
    )


def _download(
    release: Release, opening: Opening, progress: Progress | None, tags: Sequence[str] = ()
) -> Path:
    cache, python = opening.cache, opening.interpreter
    with files.scratch_directory(cache / f"fetch-{release.version}") as scratch:
        command = [
            *pip.command(python.executable), "download", "--no-deps", "--only-binary=:all:",
            "--disable-pip-version-check", "--no-input", "--progress-bar=off",
            "--dest", scratch / "wheel", f"torch=={release.version}",
            # Also its own: pip below 24.1 takes a free-threaded Python for the other one.
            *(tags or _pip_tags(python.tag)),
        ]  # fmt: skip
        outcome = _watched(command, scratch, progress)
        if outcome.returncode:
            cached = cached_wheels(release, python, cache)
            other = f"or use the wheel that is here: --base {cached[0]}" if cached else ""
            raise pip.download_error(outcome, f"torch {release.version}", cache, other)
        return _admit(_only_wheel(scratch, outcome), release, opening)


def _watched(
    command: list[str | Path], scratch: Path, progress: Progress | None
) -> process.Outcome:
    """Run pip with its temporary files in `scratch`, where their growth can be watched."""
    done = threading.Event()

    def watch() -> None:
        while progress and not done.wait(0.3):
            try:
                sizes = [path.stat().st_size for path in scratch.rglob("*.whl") if path.is_file()]
            except OSError:  # pip moves files while we look
                continue
            progress(sum(sizes))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        environment = {"TMPDIR": str(scratch), "LC_MESSAGES": "C"}
        return process.run(command, cwd=scratch, env=environment, check=False, supervised=True)
    finally:
        done.set()
        watcher.join()


def _only_wheel(scratch: Path, outcome: process.Outcome) -> Path:
    wheels = sorted((scratch / "wheel").glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(
            f"pip left {len(wheels)} wheels where one is expected",
            where=outcome.command,
            next="run this command by hand, and give the right one of them with --base",
        )
    if not zipfile.is_zipfile(wheels[0]):
        raise DownloadError(
            f"the download of {wheels[0].name} broke off",
            where=outcome.command,
            why=f"{wheels[0].stat().st_size} bytes came, and they are no complete archive",
            next="run the same command again; if it persists, clear pip's cache: pip cache purge",
        )
    return wheels[0]


def _admit(wheel: Path, release: Release, opening: Opening) -> Path:
    """Move a download into the cache if its bytes are pinned."""
    sha256 = files.sha256_file(wheel)
    pinned = opening.pins.by_sha256(sha256)
    if pinned and pinned[0] == release:
        return _move(wheel, _place(opening.cache, pinned[1]))
    kept = _move(wheel, opening.cache / "unpinned" / sha256 / wheel.name)
    expected = " or ".join(pin.sha256 for pin in opening.pins.by_file(wheel.name))
    raise HashMismatchError(
        f"pip gave a wheel for torch {release.version} that is not pinned",
        where=str(kept),
        why=f"sha256 {sha256}\n"
        + (f"pinned {expected}" if expected else f"no pin names {wheel.name}"),
        next="if you trust where it came from, check its commit and add it to the pins:\n"
        f"scripts/torchfork pin {kept}",
    )


def _move(source: Path, target: Path) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
    except OSError as error:
        raise files.output_error(target, error) from error
    return target


# --- releases that are not pinned yet


def available(interpreter: Interpreter) -> list[str]:
    """The final versions of torch that the user's index has, oldest first."""
    command = [*pip.command(interpreter.executable), "index", "versions", "torch"]
    outcome = process.run([*command, "--disable-pip-version-check"], check=False)
    found = re.search(r"^Available versions: (.*)$", outcome.stdout, re.MULTILINE)
    if outcome.returncode or not found:
        raise pip.download_error(outcome, "the list of torch's versions", Path())
    versions = {text for text in found[1].replace(",", " ").split() if _is_final(text)}
    return sorted(versions, key=Version)


def _is_final(text: str) -> bool:
    try:
        version = Version(text)
    except InvalidVersion:
        return False
    return not (version.is_prerelease or version.is_postrelease or version.local)


def unpinned(versions: Iterable[str], releases: Releases) -> list[str]:
    """Those that come after the oldest pinned release and are not pinned."""
    oldest = min(map(Version, releases.versions))
    return [v for v in versions if Version(v) > oldest and v not in releases.versions]


def resolve_wheels(
    version: str, releases: Releases, interpreter: Interpreter, say: Callable[[str], None]
) -> tuple[WheelPin, ...]:
    """The wheels of a release, for the Pythons and machines that the pinned releases have.

    Also for the Python after the newest of them. Raises DownloadError where there is none at all.
    """
    pins = [pin for release in releases.releases for pin in release.wheels]
    wanted = [(p, platforms) for p in _python_tags(pins) for platforms in _platforms(pins)]

    def resolved(what: tuple[str, list[str]]) -> WheelPin | None:
        say(f"{what[0]}, {what[1][-1]}")
        return _resolve(version, *what, interpreter)

    with ThreadPoolExecutor(4) as pool:  # pip waits for the index most of the time
        found = {pin.file: pin for pin in pool.map(resolved, wanted) if pin is not None}
    if not found:
        raise DownloadError(
            f"the index has no wheel of torch {version}",
            why="asked for " + ", ".join(_python_tags(pins)),
            next="check the version, and pip's settings (pip config list)",
        )
    return tuple(found.values())


def _python_tags(pins: Sequence[WheelPin]) -> list[str]:
    known = {pin.name.interpreter for pin in pins}
    newest = max(map(python_number, known))
    return sorted(known | {f"cp{newest + 1}", f"cp{newest + 1}t"})


def _platforms(pins: Sequence[WheelPin]) -> list[list[str]]:
    """The platform tags of each kind of machine, x86-64 Linux first."""
    tags = sorted({pin.name.platform for pin in pins})
    kinds = (("linux", "x86_64"), ("linux", "aarch64"), ("macosx", "arm64"))
    grouped = [
        [t for t in tags if system in t and t.endswith(machine)] for system, machine in kinds
    ]
    return [group for group in grouped if group]


def _resolve(
    version: str, python: str, platforms: Sequence[str], interpreter: Interpreter
) -> WheelPin | None:
    """The wheel that pip would take, or None where there is none."""
    tags = [part for platform in platforms for part in ("--platform", platform)]
    outcome = process.run(
        [*pip.command(interpreter.executable), "install", "--dry-run", "--ignore-installed",
         "--no-deps", "--only-binary=:all:", "--quiet", "--no-input", "--report", "-",
         "--disable-pip-version-check", "--target", "unused", *_pip_tags(python), *tags,
         f"torch=={version}"],
        check=False,
    )  # fmt: skip
    if outcome.returncode:
        failure = pip.download_error(outcome, f"torch {version}", Path())
        # No wheel for this Python and machine is an answer; an index out of reach is not.
        if failure.what.startswith("pip found no wheel"):
            return None
        raise failure
    download = json.loads(outcome.stdout)["install"][0]["download_info"]
    name = download["url"].rpartition("/")[2].replace("%2B", "+")
    sha256 = download.get("archive_info", {}).get("hashes", {}).get("sha256", "")
    if not sha256:
        raise DownloadError(
            f"the index lists no sha256 of {name}",
            where=download["url"],
            next="fetch the wheel and pin it by its own bytes: scripts/torchfork pin WHEEL",
        )
    return WheelPin(name, sha256)
