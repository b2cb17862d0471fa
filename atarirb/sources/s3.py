"""Amazon S3 and stores with its API, by s3fs; endpoint and credentials as fsspec and AWS are configured."""

from __future__ import annotations

from s3fs import S3FileSystem

from atarirb.sources.transfer import Piece, Version, md5_of_hex, range_header

_CHUNK_BYTES = 256 << 10


class Store(S3FileSystem):
    """Buckets: s3fs, with ranges as `Transfer` wants them."""

    async def fetch(self, path: str, piece: Piece) -> None:
        """Fetch a range, inside the event loop."""
        bucket, key, _ = self.split_path(path)
        try:
            answer = await self._call_s3("get_object", Bucket=bucket, Key=key, **range_header(piece))
        except OSError as error:
            if _code(error) != "InvalidRange":  # at the object's end, or behind it
                raise
            answer = await self._call_s3("head_object", Bucket=bucket, Key=key)
            piece.begin(_version(answer, answer["ContentLength"]))
            return
        total = answer.get("ContentRange", "").partition("/")[2]
        piece.begin(_version(answer, int(total) if total else answer["ContentLength"]), whole=not total)
        skipped = 0 if total else piece.first
        body = answer["Body"]
        try:
            while chunk := await body.read(_CHUNK_BYTES):
                kept = chunk[skipped:]
                skipped -= len(chunk) - len(kept)
                if kept:
                    piece.put(kept)
                    await piece.room()
        finally:
            body.close()


def _code(error: BaseException | None) -> str:
    response = getattr(error.__cause__, "response", None) if error else None
    return response["Error"].get("Code", "") if response else ""


def _version(answer: dict, size: int) -> Version:
    tag = answer.get("ETag", "").strip('"')
    # The MD5 of what was uploaded in one go; of parts, the tag has a dash.
    encrypted = answer.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in answer
    return Version(size=size, tag=tag, md5="" if encrypted else md5_of_hex(tag))
