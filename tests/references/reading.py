"""Bytes and numbers that the naive decoders read from the front."""


class Bytes:
    """Bytes that are read from the front."""

    def __init__(self, data: bytes):
        self.data, self.place = data, 0

    def take(self, count: int) -> bytes:
        self.place += count
        return self.data[self.place - count : self.place]

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    @property
    def rest(self) -> int:
        return len(self.data) - self.place
