"""The packed codec: every frame a zstd block of its own, against templates of its shard.

A game's frames are much alike, so a frame that is compressed alone but may refer to a few hundred others,
the shard's templates, takes no more room than in the solid gzip stream it came from; and it is decoded
alone, in a microsecond or two. A shard has three files.

``observation.dict``: the templates, frames of the shard end to end, as one standard zstd frame with its
content size and checksum (``zstd -d`` reads it). Their bytes are the raw content of the dictionary.

``observation.pack``: one block a frame, end to end, in the order of frames (the shard's steps, then its
final frames). A block of L bytes is::

    L - 4   a zstd frame (RFC 8878) of the frame's bytes, of the "magicless" format: without the four
            bytes of the magic number, and with neither content size, dictionary id nor checksum: its
            first byte is 0; its second, the size of the window, is 136 (128 MiB) at the most
    4       little-endian CRC-32 of the templates, the frame's number in the shard as 8 little-endian
            bytes, and the zstd frame, one after the other: so a block that is damaged, or taken for
            another frame's, or read with other templates, is told

``observation.idx.npy``: one record for each 32 frames, the last one filled up with zeros::

    offset  uint64       where the first one's block begins in ``observation.pack``
    length  uint16[32]   L of each; uint32[32] where frames have more than 32,768 bytes

The manifest keeps the parameters that the blocks were made with; reading needs none of them.
"""

from __future__ import annotations

from atarirb.store.packed.frames import Frames, InOrder
from atarirb.store.packed.layout import NAME, PARAMETERS, disk_bytes, files, sampled
from atarirb.store.packed.writing import Writer

__all__ = ["NAME", "PARAMETERS", "Frames", "InOrder", "Writer", "disk_bytes", "files", "sampled"]
