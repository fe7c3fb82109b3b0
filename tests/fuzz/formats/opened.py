"""A .sqz file whose blocks have opened wrappers: trees, pieces, groups, and what closes streams."""

import pickle
import zlib
from pathlib import Path

import numpy as np

from tests.fuzz.formats.sqz import Sqz
from tests.makers import arrays, byte_code, cheapest, classes, dexes, faxes, hdf5, images, inputs, quick, wrapped


class Opened(Sqz):
    """Files of zip archives, gzip files, zlib streams and images."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder, 1)

    def _inputs(self) -> list[tuple[bytes, int]]:
        documents = wrapped.documents() | wrapped.escaped()
        text = inputs.words(2_500) + bytes(300)
        documents["cheapest"] = b"\x78\xda" + cheapest.deflated(text, 2, 0.1) + zlib.adler32(text).to_bytes(4)
        for coding in (5, 8):
            documents[f"TIFF {coding}"] = images.tiff(images.pixels(30, 40), strips=3, coding=coding, predictor=2)
        documents |= {f"fax {name}": faxes.tiff(name) for name in ("group 4", "group 3, mixed, filled")}
        documents["fax in PDF"] = faxes.pdf("group 4, aligned")
        documents |= {f"Parquet {encoder}": quick.parquet(encoder) for encoder in (0, 2, quick.LZ4)}
        documents |= {"LZ4": quick.lz4_file(text, 0x5C), "Snappy": quick.snappy_file(text)}
        documents["byte code"] = byte_code.by_hand("3.11") + byte_code.by_hand("3.8")
        documents["class file"] = classes.class_file(20)
        documents["Android executable"] = dexes.dex_file()
        documents["pickle"] = pickle.dumps([[str(number), number] for number in range(200)], 2)
        documents["HDF5"] = hdf5.hdf5(np.frombuffer(arrays.heights(40, 50), ">i2").reshape(40, 50), 10)
        documents["floats of TIFF"] = images.tiff(images.pixels(30, 40) / np.float32(7), coding=8, predictor=3)
        joined = b"".join(documents.values())
        return [*((document, 1 << 20) for document in documents.values()), (joined, 4_000)]


FORMAT = Opened
