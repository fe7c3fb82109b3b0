"""All kinds of wrappers, by the numbers that files have for them."""

from squeeze.codecs.parse.base85 import Ascii85, Base85
from squeeze.codecs.parse.bzip2.stream import Bzip2
from squeeze.codecs.parse.curve import Curve
from squeeze.codecs.parse.dex import Dex
from squeeze.codecs.parse.early_lzw import EarlyLzw
from squeeze.codecs.parse.encodings import CodePage, Utf32
from squeeze.codecs.parse.escapes import JsonEscapes, Percent, QuotedPrintable
from squeeze.codecs.parse.fax.wrapper import Fax
from squeeze.codecs.parse.gif import Gif, RankedGif
from squeeze.codecs.parse.java.wrapper import JavaClass
from squeeze.codecs.parse.pickles import Pickle
from squeeze.codecs.parse.planes import Planes
from squeeze.codecs.parse.program.wrapper import Program
from squeeze.codecs.parse.protocol import Wrapper
from squeeze.codecs.parse.pyc.wrapper import Pyc
from squeeze.codecs.parse.quick.lz4_frames import Lz4Frame
from squeeze.codecs.parse.quick.parquet import ParquetPage
from squeeze.codecs.parse.quick.snappy_frames import SnappyFrame
from squeeze.codecs.parse.streams import Deflate, Gzip, Png, RankedPng, ZipMember, Zlib
from squeeze.codecs.parse.strips import Differences
from squeeze.codecs.parse.texts import Base64, Hexadecimal, Lines, Utf16

__all__ = ["WRAPPERS"]

WRAPPERS: tuple[Wrapper, ...] = (
    ZipMember(),
    Zlib(),
    Gzip(),
    Png(),
    Utf16(),
    Base64(),
    Hexadecimal(),
    Gif(),
    Lines(),
    Program(),
    Bzip2(),
    Percent(),
    QuotedPrintable(),
    JsonEscapes(),
    Ascii85(),
    Base85(),
    Deflate(),
    EarlyLzw(),
    Utf32(),
    CodePage(),
    Differences(),
    Fax(),
    RankedGif(),
    RankedPng(),
    ParquetPage(),
    Lz4Frame(),
    SnappyFrame(),
    Planes(),
    Pyc(),
    JavaClass(),
    Pickle(),
    Dex(),
    Curve(),
)
