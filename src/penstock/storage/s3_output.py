"""A new object, written in order: there as a whole when it is complete, and never there in part.

A small one is a single PUT. A larger one is sent in parts while it is being written, a few at a time; S3 makes the
object only of a completed upload, and an upload that is given up is aborted, so that its parts cost nothing.
"""

import io
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from penstock.storage.s3_faults import code_of, is_of_s3

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PART_BYTES = 16 << 20  # S3 takes 10,000 parts: files of up to 156 GiB
SENT_AT_ONCE_MAX = 3
NO_UPLOAD = "NoSuchUpload"


class S3Output(io.RawIOBase):
    """Takes bytes; nothing is there before `complete`. ``client`` is boto3's.

    ``put`` stores a small object, ``size_of`` tells how large the one that is there is, and None where there is none;
    ``explained`` raises what the client does in our own words: a writer of files in between need not know them.
    """

    def __init__(
        self,
        *,
        client: Any,
        bucket: str,
        key: str,
        put: Callable[[bytes], None],
        size_of: Callable[[], int | None],
        explained: Callable[[], AbstractContextManager[None]],
        extra: Mapping[str, str],
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._client = client
        self._object = {"Bucket": bucket, "Key": key, **extra}
        self._put = put
        self._size_of = size_of
        self._explained = explained
        self._part_bytes = part_bytes
        self._held = bytearray()
        self._upload_id: str | None = None  # once there is more than a part
        self._senders: ThreadPoolExecutor | None = None
        self._sending: deque[Future[None]] = deque()
        self._begun = 0  # parts
        self._etags: dict[int, str] = {}  # of the parts that are there, by number; written by the senders
        self._written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: "ReadableBuffer", /) -> int:
        taken = memoryview(data).cast("B")
        self._held += taken
        self._written += len(taken)
        while len(self._held) > self._part_bytes:
            part = bytes(memoryview(self._held)[: self._part_bytes])
            del self._held[: self._part_bytes]
            self._send(part)
        return len(taken)

    def complete(self) -> None:
        """Make the object."""
        if self._upload_id is None:
            self._put(bytes(self._held))
            return
        self._send(bytes(self._held))
        with self._explained():
            while self._sending:
                self._sending.popleft().result()
            self._complete_upload()
        self._end_senders()

    def abort(self) -> None:
        """Give the object up. What fails now is not told: the bucket's lifecycle rules are the last broom."""
        self._end_senders()
        if self._upload_id is not None:
            with suppress(Exception):
                self._client.abort_multipart_upload(**self._object, UploadId=self._upload_id)

    def _complete_upload(self) -> None:
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in sorted(self._etags.items())]
        try:
            self._client.complete_multipart_upload(
                **self._object, UploadId=self._upload_id, MultipartUpload={"Parts": parts}
            )
        except Exception as error:
            # The client tries again by itself, and then the upload may have been completed by a try without an answer.
            if not (is_of_s3(error) and code_of(error) == NO_UPLOAD and self._size_of() == self._written):
                raise

    def _send(self, part: bytes) -> None:
        with self._explained():
            if self._senders is None:
                self._upload_id = self._client.create_multipart_upload(**self._object)["UploadId"]
                self._senders = ThreadPoolExecutor(SENT_AT_ONCE_MAX, thread_name_prefix="penstock-s3-part")
            while len(self._sending) >= SENT_AT_ONCE_MAX:
                self._sending.popleft().result()
        self._begun += 1
        self._sending.append(self._senders.submit(self._send_part, self._begun, part))

    def _send_part(self, number: int, part: bytes) -> None:
        answer = self._client.upload_part(**self._object, UploadId=self._upload_id, PartNumber=number, Body=part)
        self._etags[number] = answer["ETag"]

    def _end_senders(self) -> None:
        if self._senders is not None:
            self._senders.shutdown(cancel_futures=True)
            self._sending.clear()
