"""Folders in an object store, each as one object: a tar that ends with its SHA-256.

One object is written with one request, so that a folder is there as a whole; where a store shows
the half of one all the same, its SHA-256 is wrong. Credentials are those of the machine or the
environment, never a part of the URL, which is written into files and logs.
"""

from __future__ import annotations

import functools
import hashlib
import io
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tinyattn.errors import DamagedError, StorageError

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "file")
_SECRETS = ("key", "secret", "password", "token", "signature", "sig")
_HAVE_FOLDERS = ("local", "hdfs")
"""Kinds of file systems where a folder must be made before there is anything in it."""
_DIGEST = hashlib.sha256().digest_size


def is_url(place: str) -> bool:
    """Whether a place is a URL, and no path."""
    return "://" in place


def check_url(url: str) -> None:
    """Raise ValueError where a URL is of an unknown kind or holds a secret; it is not shown."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"{parts.scheme}:// came, allowed are {', '.join(SCHEMES)}")
    # What stands before an @ is a container in abfs, and half of a secret in s3.
    has_user = parts.password is not None or (parts.scheme == "s3" and parts.username is not None)
    words = {word for key, _ in parse_qsl(parts.query) for word in key.lower().split("_")}
    if has_user or words & set(_SECRETS):
        raise ValueError(
            "a URL with a user, password or key came, allowed is one without; credentials are "
            "taken from each machine: AWS_ACCESS_KEY_ID and the like, ~/.aws/credentials, a role"
        )


@dataclass(frozen=True)
class Objects:
    """What is under a URL; StorageError: the store does not answer, or refuses."""

    url: str

    def within(self, key: str) -> Objects:
        """What is under a key."""
        place, mark, options = self.url.partition("?")
        return Objects(f"{place.rstrip('/')}/{key}{mark}{options}")

    def put(self, key: str, files: Mapping[str, bytes]) -> None:
        """Keep files, by relative path, as one object."""
        content = _packed(files)
        with self._opened() as (system, base):
            path = f"{base}/{key}"
            if system.type_name in _HAVE_FOLDERS:
                system.create_dir(path.rpartition("/")[0])
            with system.open_output_stream(path) as stream:
                stream.write(content)

    def get(self, key: str, folder: Path) -> None:
        """Put the files of an object into a folder.

        Raises:
            DamagedError: it is not there, or not as it was written.
        """
        with self._opened() as (system, base):
            try:
                with system.open_input_stream(f"{base}/{key}") as stream:
                    content = stream.read()
            except FileNotFoundError:
                raise DamagedError(f"{self.within(key).url}: is not there") from None
        body, digest = content[:-_DIGEST], content[-_DIGEST:]
        if hashlib.sha256(body).digest() != digest:
            raise DamagedError(f"{self.within(key).url}: damaged, its SHA-256 is another")
        try:
            with tarfile.open(fileobj=io.BytesIO(body)) as archive:
                archive.extractall(folder, filter="data")  # nothing outside the folder
        except tarfile.TarError as error:
            raise DamagedError(f"{self.within(key).url}: no archive of files: {error}") from None

    def names(self, key: str) -> list[str]:
        """Names of what is under a key, sorted; nothing where there is none."""
        with self._opened() as (system, base):
            from pyarrow.fs import FileSelector

            found = system.get_file_info(
                FileSelector(f"{base}/{key}".rstrip("/"), allow_not_found=True)
            )
            return sorted(info.base_name for info in found)

    def remove(self, key: str) -> None:
        """Remove an object, or all that is under a key; it need not be there."""
        with self._opened() as (system, base):
            path = f"{base}/{key}"
            try:
                if system.get_file_info(path).is_file:
                    system.delete_file(path)
                else:
                    system.delete_dir(path)
            except FileNotFoundError:
                return

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, str]]:
        """The file system of the URL and the path in it."""
        try:
            yield _file_system(self.url)
        except (OSError, ValueError) as error:  # pyarrow raises both
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise StorageError(
                f"{self.url}: {reason}; see that it is there, that this machine reaches it, and "
                "that its credentials may list, read, write and remove"
            ) from None


@contextmanager
def fetched(place: str) -> Iterator[Path]:
    """A folder for the length of the block: the one at a path, or a copy of one behind a URL.

    Raises:
        StorageError: it cannot be had.
    """
    if not is_url(place):
        yield Path(place)
        return
    above, _, options = place.partition("?")
    above, _, key = above.rpartition("/")
    with scratch() as folder:
        Objects(f"{above}?{options}" if options else above).get(key, folder)
        yield folder


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on this machine's own disk for the length of the block."""
    try:
        with tempfile.TemporaryDirectory(prefix="tinyattn-") as folder:
            yield Path(folder)
    except OSError as error:
        raise StorageError(
            f"{tempfile.gettempdir()}: cannot be used: {error.strerror or error}; free space or "
            "choose another by TMPDIR"
        ) from None


def files_in(folder: Path) -> dict[str, bytes]:
    """Content of the files in and below a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@functools.cache
def _file_system(url: str) -> tuple[Any, str]:
    from pyarrow.fs import FileSystem  # costs what no shared folder needs

    if url.startswith("s3:") and "allow_delayed_open" not in url:
        # One request in the place of three, and no half of an upload that a dead process leaves.
        url += f"{'&' if '?' in url else '?'}allow_delayed_open=true"
    return FileSystem.from_uri(url)


def _packed(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    body = buffer.getvalue()
    return body + hashlib.sha256(body).digest()  # behind its end, where tar does not look
