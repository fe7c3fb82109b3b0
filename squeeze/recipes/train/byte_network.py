"""Small language models over bytes with a state of constant size: gated linear recurrences, flat or with words.

A block is a recurrence and a feed-forward network, each after a norm and with a residual connection (the order of
Griffin, De et al. 2024, arXiv:2402.19427). `Flat` is a stack of blocks over bytes. `ByWords` runs wider blocks once a
word, after its first separating byte, and adds their output to every byte up to the next one. That is SpaceByte (Slagle
2024, arXiv:2404.14408) with recurrences in place of attention. It gives more parameters for the same work a byte, as do
embeddings of the last two, three and four bytes by hash (Pagnoni et al. 2024, arXiv:2412.09871). Matrices of words are
rounded to 4 bits during training, and tables if requested.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from squeeze.kernels.recurrence import scan

BYTES = 256
TAPS = 4  # bytes that the convolution before a recurrence sees
GRAMS = (2, 3, 4)  # latest bytes that have an embedding of their own
MULTIPLIER = 0x9E3779B97F4A7C15 - (1 << 64)  # of hashes: 2^64 over the golden ratio, as a signed integer
WORD_BITS = 4  # of the matrices of words
_STEP = 0.3352  # between 16 levels, of the deviation of normal weights: the best there is (Max 1960)
State = list[Tensor]


@dataclass(frozen=True)
class Shape:
    """Sizes of a model. A word width of 0 means a flat one."""

    width: int = 256
    layers: int = 4  # over bytes; of a model by words, half of them come before the words and half after
    feed_forward: int = 512
    word_width: int = 0
    word_layers: int = 0
    word_feed_forward: int = 0
    gram_rows: int = 0  # of the tables of embeddings of the latest bytes; a power of two, or 0 for no such tables
    word_bits: int = WORD_BITS  # of the matrices of words; 0 for no rounding
    gram_bits: int = 0  # of the tables, likewise

    def products(self, bytes_a_word: float = 5.0) -> float:
        """Return the multiplications a byte."""
        total: float = self.layers * _products(self.width, self.feed_forward) + self.width * BYTES
        if self.word_width:
            words = self.word_layers * _products(self.word_width, self.word_feed_forward)
            total += (words + 2 * self.width * self.word_width) / bytes_a_word
        return total


def _products(width: int, feed_forward: int) -> int:
    return 4 * width * width + 3 * width * feed_forward + TAPS * width


def build(shape: Shape) -> "Flat | ByWords":
    return ByWords(shape) if shape.word_width else Flat(shape)


class Recurrence(nn.Module):
    """Weights of the recurrence h[t] = a * h[t - 1] + (1 - a) * v, with a and v computed from the last inputs, and a
    gate on its output.
    """

    def __init__(self, width: int):
        super().__init__()
        self.into = nn.Linear(width, 3 * width, bias=False)  # value, forget, gate
        self.taps = nn.Parameter(torch.randn(TAPS, width) / TAPS)
        self.keeping = nn.Parameter(torch.linspace(-1.0, 6.0, width))  # half-lives from one to some hundreds of steps
        self.out = nn.Linear(width, width, bias=False)


def rounded(weight: Tensor, bits: int) -> Tensor:
    """Round a weight, float32 [N, K], to the middles of 2^bits equal steps, with one step size a row.

    The gradient is that of no rounding (Bengio et al. 2013, arXiv:1308.3432). 0 bits do not round.
    """
    if not bits:
        return weight
    codes, step = levels(weight.detach(), bits)
    return weight + ((codes + 0.5) * step - weight).detach()


def levels(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the levels of `rounded`, whole numbers from -2^(bits - 1), [N, K], and the step sizes [N, 1]."""
    top = 1 << bits - 1
    step = weight.square().mean(1, keepdim=True).sqrt().clamp_min(1e-12) * _STEP
    return torch.floor(weight / step).clamp(-top, top - 1), step


def _normed(x: Tensor, norm: nn.RMSNorm, linear: nn.Linear, bits: int) -> Tensor:
    """Apply a norm and a matrix; the norm's gains are folded into the matrix before it is rounded."""
    if not bits:
        return linear(norm(x))  # type: ignore[no-any-return]
    plain = functional.rms_norm(x, norm.normalized_shape)
    return functional.linear(plain, rounded(linear.weight * norm.weight, bits))


def enter(x: Tensor, block: "Block", last: Tensor, active: Tensor | None) -> list[Tensor]:
    """Return the inputs of a scan: decays and updates, the gate, and the last inputs.

    Args:
        x: [batch, time, width].
        block: The block.
        last: Inputs before x, [batch, TAPS - 1, width].
        active: bool [batch, time], if some steps are padding.
    """
    recurrence = block.recurrence
    value, forget, gate = _normed(x, block.norm, recurrence.into, block.bits).float().chunk(3, -1)
    past, time = torch.cat([last, value], 1), x.shape[1]
    mixed = sum((past[:, k : k + time] * recurrence.taps[k] for k in range(TAPS)), torch.zeros_like(value))
    decay = torch.sigmoid(forget + recurrence.keeping)
    update = (1 - decay) * mixed
    if active is not None:
        decay, update = torch.where(active[..., None], decay, 1.0), torch.where(active[..., None], update, 0.0)
    return [decay, update, gate, past]


def leave(x: Tensor, states: Tensor, gate: Tensor, block: "Block") -> Tensor:
    """Return the output of a block: the gated scan, then the feed-forward network."""
    gated = (states * functional.silu(gate)).to(x.dtype)
    x = x + functional.linear(gated, rounded(block.recurrence.out.weight, block.bits))
    inner, up = _normed(x, block.feed_forward_norm, block.gate_up, block.bits).chunk(2, -1)
    return x + functional.linear(functional.silu(inner) * up, rounded(block.down.weight, block.bits))


class Block(nn.Module):
    pieces = (enter, leave)  # what stands around the scan; `compile_pieces` makes them faster

    def __init__(self, width: int, feed_forward: int, bits: int):
        super().__init__()
        self.width, self.bits = width, bits
        self.norm, self.recurrence = nn.RMSNorm(width), Recurrence(width)
        self.feed_forward_norm = nn.RMSNorm(width)
        self.gate_up = nn.Linear(width, 2 * feed_forward, bias=False)
        self.down = nn.Linear(feed_forward, width, bias=False)

    def forward(self, x: Tensor, state: State, active: Tensor | None = None) -> tuple[Tensor, State]:
        """Return output and state, which is the last inputs [batch, TAPS - 1, width] and h [batch, width]."""
        before, after = self.pieces
        decay, update, gate, past = before(x, self, state[0], active)
        states = scan(decay, update, state[1])
        return after(x, states, gate, self), [_last(past, active), states[:, -1]]

    def start(self, batch: int) -> State:
        device = self.down.weight.device
        return [torch.zeros(batch, TAPS - 1, self.width, device=device), torch.zeros(batch, self.width, device=device)]


def compile_pieces() -> None:
    """Compile what surrounds the scan by torch, which is twice as fast for large batches."""
    Block.pieces = (torch.compile(enter), torch.compile(leave))


def _last(past: Tensor, active: Tensor | None) -> Tensor:
    """Return the last inputs of each row that are not padding."""
    if active is None:
        return past[:, -(TAPS - 1) :]
    places = active.sum(1)[:, None] + torch.arange(TAPS - 1, device=past.device)
    return past.gather(1, places[..., None].expand(-1, -1, past.shape[2]))


class Stack(nn.Module):
    """A sequence of blocks of one width."""

    def __init__(self, width: int, layers: int, feed_forward: int, bits: int = 0):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, feed_forward, bits) for _ in range(layers))

    def forward(self, x: Tensor, state: State, active: Tensor | None = None) -> tuple[Tensor, State]:
        after: State = []
        for k, block in enumerate(self.blocks):
            x, new = block.forward(x, state[2 * k : 2 * k + 2], active)  # type: ignore[operator]
            after += new
        return x, after

    def start(self, batch: int) -> State:
        return [part for block in self.blocks for part in block.start(batch)]  # type: ignore[operator]


class _Model(nn.Module):
    """A base of both models, with embedding, head and initial weights."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(BYTES, shape.width)
        rows = [gram_rows(length, shape.gram_rows) for length in GRAMS if shape.gram_rows]
        self.grams = nn.ModuleList(nn.Embedding(count, shape.width) for count in rows)
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, BYTES, bias=False)

    def _initialise(self) -> None:
        depth = self.shape.layers + self.shape.word_layers
        for name, weight in self.named_parameters():
            if weight.ndim == 2 and not name.endswith("taps"):
                scale = weight.shape[1] ** -0.5
                small = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=scale / (2 * depth) ** 0.5 if small else scale)
        nn.init.normal_(self.embedding.weight, std=1.0)
        for table in self.grams:
            nn.init.zeros_(table.weight)  # type: ignore[arg-type]

    def _embed(self, data: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings of bytes [batch, time], and the bytes before the next ones, [batch, longest - 1]."""
        known = torch.cat([before, data], 1)
        x, gram, longest = self.embedding(data), known[:, longest_gram() - 1 :], longest_gram()
        for length in range(2, longest + 1):
            gram = gram | known[:, longest - length : known.shape[1] - length + 1] << 8 * (length - 1)
            if length in GRAMS and len(self.grams):
                k = GRAMS.index(length)
                row = gram_row(gram, gram_rows(length, self.shape.gram_rows))
                x = x + self._looked_up(self.grams[k], row)
        return x, known[:, -(longest - 1) :]

    def _looked_up(self, table: nn.Module, row: Tensor) -> Tensor:
        if not self.shape.gram_bits:
            return table(row)  # type: ignore[no-any-return]
        return functional.embedding(row, rounded(table.weight, self.shape.gram_bits))  # type: ignore[arg-type]

    def _first_bytes(self, batch: int) -> Tensor:
        return torch.zeros(batch, longest_gram() - 1, dtype=torch.long, device=self.head.weight.device)


class Flat(_Model):
    """A model with one stack over bytes."""

    def __init__(self, shape: Shape):
        super().__init__(shape)
        self.stack = Stack(shape.width, shape.layers, shape.feed_forward)
        self._initialise()

    def forward(self, data: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the logits of each next byte, [batch, time, 256], and the state, for int64 bytes [batch, time]."""
        x, latest = self._embed(data, state[-1])
        x, state = self.stack(x, state[:-1])
        return self.head(self.norm(x)).float(), [*state, latest]

    def start(self, batch: int) -> State:
        return [*self.stack.start(batch), self._first_bytes(batch)]


class ByWords(_Model):
    """A model with blocks over bytes, wider ones over words, and blocks over bytes again."""

    separates: Tensor

    def __init__(self, shape: Shape):
        super().__init__(shape)
        before = shape.layers // 2
        self.before = Stack(shape.width, before, shape.feed_forward)
        self.up = nn.Linear(shape.width, shape.word_width, bias=False)
        self.words = Stack(shape.word_width, shape.word_layers, shape.word_feed_forward, shape.word_bits)
        self.down = nn.Linear(shape.word_width, shape.width, bias=False)
        self.after = Stack(shape.width, shape.layers - before, shape.feed_forward)
        self.register_buffer("separates", separators(), persistent=False)
        self._initialise()

    def forward(self, data: Tensor, state: State) -> tuple[Tensor, State]:
        """Return logits and state as `Flat` does. The state also has the last output of the words, whether the last
        byte was a separator, and bytes.
        """
        first, middle = 2 * len(self.before.blocks), 2 * len(self.words.blocks)
        x, latest = self._embed(data, state[-1])
        x, before = self.before(x, state[:first])
        said, words, separated = self._words(x, data, state[first : first + middle], state[-3], state[-2])
        x, after = self.after(x + said, state[first + middle : -3])
        return self.head(self.norm(x)).float(), [*before, *words, *after, said[:, -1], separated, latest]

    def _words(
        self, x: Tensor, data: Tensor, state: State, last: Tensor, separated: Tensor
    ) -> tuple[Tensor, State, Tensor]:
        """Return what the word blocks add to each byte. Only bytes that end a word are gathered and computed."""
        separates = self.separates[data]
        ends = separates & ~torch.cat([separated[:, None], separates[:, :-1]], 1)
        count = ends.sum(1)
        most = max(int(count.max()), 1)
        order = torch.argsort(~ends, dim=1, stable=True)[:, :most]
        active = torch.arange(most, device=x.device) < count[:, None]
        gathered = x.gather(1, order[..., None].expand(-1, -1, x.shape[2]))
        wide = functional.linear(gathered, rounded(self.up.weight, self.shape.word_bits)).float()
        y, state = self.words(wide, state, active)
        said = torch.cat(
            [last[:, None], functional.linear(y, rounded(self.down.weight, self.shape.word_bits)).float()], 1
        )
        places = ends.cumsum(1)
        return said.gather(1, places[..., None].expand(-1, -1, x.shape[2])), state, separates[:, -1]

    def start(self, batch: int) -> State:
        device = self.head.weight.device
        silence = torch.zeros(batch, self.shape.width, device=device)
        stacks = [part for stack in (self.before, self.words, self.after) for part in stack.start(batch)]
        separated = torch.ones(batch, dtype=torch.bool, device=device)
        return [*stacks, silence, separated, self._first_bytes(batch)]


def longest_gram() -> int:
    return max(GRAMS)


def gram_rows(length: int, rows: int) -> int:
    """Return the rows of the table for this many last bytes: pairs need fewer than longer sequences."""
    return rows // 4 if length == 2 else rows


def gram_row(gram: Tensor, rows: int) -> Tensor:
    """Return the table row of bytes that are given as an integer with the latest byte lowest, int64."""
    return (gram * MULTIPLIER >> 40) & (rows - 1)


def separators() -> Tensor:
    """Return whether each byte separates words: ASCII other than letters and digits."""
    return torch.tensor([byte < 128 and not chr(byte).isalnum() for byte in range(BYTES)])


def parameters(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())
