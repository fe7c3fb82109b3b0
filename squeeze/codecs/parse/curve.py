"""The curve of sRGB in colour profiles (ICC.1, 10.6), which is computed and not coded.

Images and documents have such profiles: iCCP of PNG, ICCBased of PDF, TIFF, and files of the suffix icc. Red, green and
blue refer to one curve, which takes 2,060 of the 3,144 bytes of the usual profile. Profiles with other values, such as
those of ArgyllCMS, are coded as they are.
"""

import re

import numpy as np

from squeeze.codecs.jpeg.known import srgb_curve
from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError

__all__ = ["Curve"]


class Curve(Wrapper):
    """The 1,024 values of the curve, behind its tag."""

    name = "curve of sRGB"
    kind = 32
    mark = re.compile(rb"curv\0\0\0\0\0\0\x04\0\0\0\0\x05\0\x0a")
    is_certain = True

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        curve = srgb_curve()
        if room.content <= 0:
            return None
        if not data.startswith(curve, start):
            room.spend(len(curve))
            return None
        return Found(self.kind, start, len(curve), np.empty(0, np.uint8))

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        if content.size or extra:
            raise DamagedError("the curve of a colour profile is impossible: the file is damaged")
        return np.frombuffer(srgb_curve(), np.uint8)
