"""moto's server in the place of S3: its protocol over HTTP, with memory for disks."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from moto.server import ThreadedMotoServer
from pyarrow.fs import FileSelector, FileSystem

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "word"}


class S3:
    """A store with one bucket, which can be away for a while and keeps what it has."""

    def __init__(self, bucket: str) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request
        os.environ.update(CREDENTIALS)
        self.bucket, self._port = bucket, 0
        self.come()
        system, _ = FileSystem.from_uri(f"{self.url()}&allow_bucket_creation=true")
        system.create_dir(bucket)

    def come(self) -> None:
        """Answer, on the same port as before."""
        self._server = ThreadedMotoServer("127.0.0.1", self._port, verbose=False)
        self._server.start()
        self._port = self._server.get_host_and_port()[1]

    def go(self) -> None:
        """Answer no more."""
        self._server.stop()

    def url(self, path: str = "sweeps", bucket: str | None = None) -> str:
        where = f"scheme=http&region=us-east-1&endpoint_override=127.0.0.1:{self._port}"
        return f"s3://{bucket or self.bucket}/{path}?{where}"


def overwrite(url: str, content: bytes) -> None:
    """Put something else in the place of an object."""
    system, path = FileSystem.from_uri(url)
    with system.open_output_stream(path) as stream:
        stream.write(content)


def everything(url: str) -> list[str]:
    """Paths of all objects below a URL, relative to it."""
    system, base = FileSystem.from_uri(url)
    found = system.get_file_info(FileSelector(base, recursive=True, allow_not_found=True))
    return sorted(str(Path(info.path).relative_to(base)) for info in found if info.is_file)
