"""Fetch an official wheel through the user's pip; only what the pins list gets into the cache.

Which wheel `torch==2.13.0` means is for the user's index settings to say: a CUDA build from one
index, a CPU build from another. So pip is asked once for each state of those settings, and what it
gave is remembered by its sha256; later runs with the same settings use the cached wheel without any
network, and get the same one even when the index has changed. With other settings pip is asked
again: a wheel that happens to lie in the cache is never preferred to what pip would give.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import DownloadError, HashMismatchError, ToolMissingError
from ..util import files, pip, process
from .base import Interpreter
from .pins import Release, Releases, WheelPin
from .wheel import hashed

LOCK_SECONDS = 3600.0


def fetch_wheel(
    release: Release,
    interpreter: Interpreter,
    releases: Releases,
    cache: Path,
    *,
    refresh: bool = False,
    progress: Callable[[int], None] | None = None,
    on_wait: Callable[[str], None] = lambda holder: None,
) -> Path:
    """The official wheel of a release for an interpreter, from the cache or through pip.

    refresh: ask pip even if it was asked before with these settings.
    progress: called now and then with the number of bytes that have come in.
    """
    _check_python(release, interpreter)
    settings = pip.settings_key(interpreter.executable.parent.parent)
    key = files.sha256_text(release.version, interpreter.tag, platform.machine(), settings)[:32]
    note = cache / "choices" / f"{key}.json"
    with files.lock(
        cache / "locks" / f"fetch-{release.version}.lock",
        f"fetching torch {release.version}",
        on_wait,
        LOCK_SECONDS,
    ):
        kept = None if refresh else _remembered(note, release, cache)
        if kept:
            return kept
        wheel = _pinned_meanwhile(release, interpreter, releases, cache)
        wheel = wheel or _download(release, interpreter, releases, cache, progress)
        files.write_json(note, {"version": release.version, "sha256": wheel.parent.name})
        return wheel


def fetch_smallest(
    release: Release,
    interpreter: Interpreter,
    releases: Releases,
    cache: Path,
    *,
    progress: Callable[[int], None] | None = None,
    on_wait: Callable[[str], None] = lambda holder: None,
) -> Path:
    """The smallest wheel of a release, whatever machine it is for; another where that fails.

    Enough for checks that run nothing of it: YAML, generator, headers and the exported names are
    those of every wheel of the release.
    """
    pins = sorted(release.wheels, key=lambda pin: _weight(pin, interpreter))
    places = [place for pin in pins if (place := _place(cache, pin)).is_file()]
    here = [place for place in places if hashed(place, cache) == place.parent.name]
    if here and _weight(WheelPin(here[0].name, ""), interpreter)[0] == 0:
        return here[0]
    tags = ["--platform", pins[0].name.platform, "--implementation", "cp",
            "--python-version", pins[0].name.python.removeprefix("cp")]  # fmt: skip
    lock = cache / "locks" / f"fetch-{release.version}.lock"
    try:
        with files.lock(lock, f"fetching torch {release.version}", on_wait, LOCK_SECONDS):
            return _download(release, interpreter, releases, cache, progress, tags)
    except DownloadError:
        if here:  # any other of the release does as well, only slower
            return here[0]
        raise


def _weight(pin: WheelPin, interpreter: Interpreter) -> tuple[int, bool, str]:
    """macOS wheels are a fifth of a CUDA build's size, Linux ones for ARM often half of it."""
    platforms = ("macosx", "aarch64", "")
    rank = next(i for i, text in enumerate(platforms) if text in pin.name.platform)
    return rank, pin.name.python != interpreter.tag, pin.name.python


def cached_wheels(release: Release, interpreter: Interpreter, cache: Path) -> list[Path]:
    """Wheels of this release for this interpreter that lie in the cache."""
    fitting = release.wheels_for(interpreter.tag, platform.system(), platform.machine())
    return [path for pin in fitting if (path := _place(cache, pin)).is_file()]


def _place(cache: Path, pin: WheelPin) -> Path:
    return cache / "wheels" / pin.sha256 / pin.file


def _remembered(note: Path, release: Release, cache: Path) -> Path | None:
    known = files.read_json(note)
    sha256 = known.get("sha256") if isinstance(known, dict) else None
    for pin in release.wheels:
        if pin.sha256 == sha256 and (path := _place(cache, pin)).is_file():
            # Hashed anew when its size or time has changed; a damaged file is fetched again.
            return path if hashed(path, cache) == sha256 else None
    return None


def _pinned_meanwhile(
    release: Release, interpreter: Interpreter, releases: Releases, cache: Path
) -> Path | None:
    """A wheel that pip gave earlier and that was refused then for lack of a pin."""
    for path in sorted((cache / "unpinned").glob(f"*/torch-*-{interpreter.tag}-*.whl")):
        pinned = releases.by_sha256(path.parent.name)
        if pinned and pinned[0] == release:
            return _admit(path, release, releases, cache)
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
            why=f"its wheels are for {', '.join(tags)}",
            next="give one of these with --python, or another release with --torch",
        )
    raise ToolMissingError(
        f"torch {release.version} has no official wheel for {system} on {machine}",
        next="build from source instead: --from-source",
    )


def _download(
    release: Release,
    interpreter: Interpreter,
    releases: Releases,
    cache: Path,
    progress: Callable[[int], None] | None,
    tags: Sequence[str] = (),
) -> Path:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        prefix = f".fetch-{release.version}-"
        for stale in cache.glob(f"{prefix}*"):  # of killed runs: this release's lock is ours
            shutil.rmtree(stale, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(dir=cache, prefix=prefix))
    except OSError as error:
        raise files.output_error(cache, error) from error
    try:
        outcome = _watched([*_command(release, interpreter, scratch), *tags], scratch, progress)
        if outcome.returncode:
            at_hand = cached_wheels(release, interpreter, cache)
            other = f"or use the wheel that is here: --base {at_hand[0]}" if at_hand else ""
            raise pip.download_error(outcome, f"torch {release.version}", cache, other)
        return _admit(_only_wheel(scratch, outcome), release, releases, cache)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _command(release: Release, interpreter: Interpreter, scratch: Path) -> list[str | Path]:
    return [
        *pip.command(interpreter.executable),
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar=off",
        "--dest",
        scratch / "wheel",
        f"torch=={release.version}",
    ]


def _watched(
    command: list[str | Path], scratch: Path, progress: Callable[[int], None] | None
) -> process.Outcome:
    """Run pip with its temporary files in `scratch`, where their growth can be watched."""
    done = threading.Event()

    def watch() -> None:
        while progress and not done.wait(0.3):
            progress(sum(path.stat().st_size for path in _files(scratch)))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        environment = {"TMPDIR": str(scratch), "LC_MESSAGES": "C"}
        return process.run(command, cwd=scratch, env=environment, check=False)
    finally:
        done.set()
        watcher.join()


def _files(scratch: Path) -> list[Path]:
    try:
        return [path for path in scratch.rglob("*.whl") if path.is_file()]
    except OSError:  # pip moves files while we look
        return []


def _only_wheel(scratch: Path, outcome: process.Outcome) -> Path:
    found = sorted((scratch / "wheel").glob("*.whl"))
    if len(found) != 1:
        raise DownloadError(
            f"pip left {len(found)} wheels where one is expected", where=outcome.command
        )
    if not zipfile.is_zipfile(found[0]):
        raise DownloadError(
            f"the download of {found[0].name} broke off",
            where=outcome.command,
            why=f"{found[0].stat().st_size} bytes came, and they are no complete archive",
            next="run the same command again; if it persists, clear pip's cache: pip cache purge",
        )
    return found[0]


def _admit(wheel: Path, release: Release, releases: Releases, cache: Path) -> Path:
    """Move a download into the cache if its bytes are pinned."""
    sha256 = files.sha256_file(wheel)
    pinned = releases.by_sha256(sha256)
    if pinned and pinned[0] == release:
        return _move(wheel, _place(cache, pinned[1]))
    kept = _move(wheel, cache / "unpinned" / sha256 / wheel.name)
    expected = [pin.sha256 for pin in releases.by_file(wheel.name)]
    raise HashMismatchError(
        f"pip gave a wheel for torch {release.version} that is not pinned",
        where=str(kept),
        why=f"sha256 {sha256}\n"
        + (f"pinned {' or '.join(expected)}" if expected else f"no pin names {wheel.name}"),
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
