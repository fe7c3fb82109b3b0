"""Sections 7.2 and 7.11 to 7.15 of docs/format.md, the state-space model, in numpy: written from the text alone."""

import numpy as np

from tests.references.naive_bytewise import GOLDEN, mix

F = np.float32


# 7.2. numpy rounds each product before it is added.


def dots(a, b):
    """dot(a[i], b) for all rows of a matrix."""
    products = a * b
    total = np.zeros((len(a), 16), F)
    for i in range(0, products.shape[1], 16):
        total = total + products[:, i : i + 16]
    for h in (8, 4, 2, 1):
        total = total[:, :h] + total[:, h:]
    return total[:, 0]


def dot(a, b):
    return dots(a[None], b)[0]


def product(y, x, matrix):
    for factor, row in zip(x, matrix, strict=True):
        y = y + factor * row
    return y


def exp(x):
    t = np.maximum(x, F(-87)) * F(1.4426950408889634)
    k = (t + F(12582912)) - F(12582912)
    r, p = t - k, F(1.5403530e-4)
    for c in (1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1):
        p = p * r + F(c)
    return np.ldexp(p, k.astype(np.int32))


def sigmoid(x):
    e = exp(-np.abs(x))
    return np.where(x >= 0, F(1), e) / (F(1) + e)


def softplus(x):
    e, p = exp(-np.abs(x)), F(0.03215845)
    for c in (-0.13606275, 0.28947478, -0.49190896, 0.99949556):
        p = F(c) + e * p
    return e * p + np.maximum(x, F(0))


# 7.11 to 7.15: the state-space model.

N, CHUNK = 8, 16


def first_weights(d, e):
    """7.11."""
    scaled = lambda scale, rows: F(scale) * F(1.7320508) / np.sqrt(F(rows))  # noqa: E731
    spread = {"embed": ((256, d), F(0.5)), "into": ((d, 2 * e), scaled(1, d)), "taps": ((4, e), F(0.5))}
    spread |= {"select": ((e, 16 + 2 * N), scaled(1, e)), "step": ((16, e), scaled(0.5, 16))}
    spread |= {"out": ((e, d), scaled(0.5, e)), "head": ((d, 256), scaled(0.3, d))}
    weights = {}
    for j, (name, (shape, scale)) in enumerate(spread.items()):
        z = (np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(1 + ((16 + j) << 40))) * np.uint64(GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
        weights[name] = ((z >> np.uint64(40)).astype(F) * F(2.0**-23) - F(1)).reshape(shape) * scale
    weights |= {"norm": np.ones(d, F), "last_norm": np.ones(d, F), "skip": np.ones(e, F)}
    weights |= {"taps_bias": np.zeros(e, F), "head_bias": np.zeros(256, F)}
    bias = [i * ((-0.5 - -4.6) / (e - 1)) + -4.6 for i in range(e - 1)] + [-0.5]
    weights |= {"step_bias": np.array(bias, F), "decay": -np.repeat(np.arange(1, N + 1, dtype=F)[:, None], e, 1)}
    return weights | {"grams": np.zeros((16384, d), F), "guesses": np.zeros((4352, 256), F)}


def normalise(x, gain):
    inverse = F(1) / np.sqrt(dot(x, x) / F(x.size) + F(1e-5))
    return inverse, x * inverse * gain


class Feed:
    """What 7.12 keeps of a byte."""

    def __init__(self, p, past, h, earlier):
        """`h` and `earlier` (u1, u2, u3) are the state before."""
        self.byte, rest = past & 255, mix(past & 0xFFFF, 0) >> 32
        self.grams = (rest % 8192, 8192 + (mix(past, 1) >> 32) % 8192)
        self.guesses = (self.byte, 256 + rest % 4096)
        self.x = p["embed"][self.byte] + p["grams"][self.grams[0]] + p["grams"][self.grams[1]]
        self.inverse_x, self.xn = normalise(self.x, p["norm"])
        z = product(np.zeros(p["into"].shape[1], F), self.xn, p["into"])
        e = z.size // 2
        self.gate, self.u = z[e:], (z[:e], *earlier)
        self.c = p["taps_bias"]
        for k in range(4):
            self.c = self.c + p["taps"][k] * self.u[k]
        self.a = self.c * sigmoid(self.c)
        self.q = product(np.zeros(16 + 2 * N, F), self.a, p["select"])
        self.raw = product(p["step_bias"], self.q[:16], p["step"])
        self.delta = softplus(self.raw)
        self.y, self.before, self.h = p["skip"] * self.a, h, []
        for k in range(N):
            keep = exp(np.minimum(self.delta * p["decay"][k], F(0)))
            self.h.append(keep * h[k] + self.delta * self.q[16 + k] * self.a)
            self.y = self.y + self.q[16 + N + k] * self.h[k]
        self.g = self.y * self.gate * sigmoid(self.gate)
        self.o = product(self.x, self.g, p["out"])
        self.inverse_o, self.on = normalise(self.o, p["last_norm"])
        bias = p["head_bias"] + p["guesses"][self.guesses[0]] + p["guesses"][self.guesses[1]]
        logits = product(bias, self.on, p["head"])
        self.e = exp(logits - logits.max())
        self.probability, self.target = self.e, 0


def normalise_back(x, inverse, gain, slope, gain_slope):
    gain_slope += slope * x * inverse
    slope = slope * gain
    inner = dot(slope, x) * (inverse * inverse / F(x.size))
    return inverse * (slope - inner * x)


def backward(p, g, fed):
    """7.14."""
    d, r, dz = [], [], [None] * len(fed)
    for t, f in enumerate(fed):
        slope = f.probability.copy()
        slope[f.target] -= F(1)
        d.append(slope * (F(1) / F(len(fed))))
        g["head_bias"] += d[t]
        g["head"] += f.on[:, None] * d[t]
        r.append(normalise_back(f.o, f.inverse_o, p["last_norm"], dots(p["head"], d[t]), g["last_norm"]))
    e = p["skip"].size
    carried, du = [np.zeros(e, F)] * N, [np.zeros(e, F)] * len(fed)
    dq = np.zeros(16 + 2 * N, F)
    for t in range(len(fed) - 1, -1, -1):
        f = fed[t]
        dg, s = dots(p["out"], r[t]), sigmoid(f.gate)
        dy = dg * f.gate * s
        dgate = dg * f.y * (s + f.gate * s * (F(1) - s))
        g["skip"] += dy * f.a
        da, ddelta = dy * p["skip"], np.zeros(e, F)
        for k in range(N):
            b, c, decay = f.q[16 + k], f.q[16 + N + k], p["decay"][k]
            dq[16 + N + k] = dot(dy, f.h[k])
            dh = carried[k] + dy * c
            keep = exp(np.minimum(f.delta * decay, F(0)))
            through = dh * keep * f.before[k]
            g["decay"][k] += through * f.delta
            ddelta = ddelta + (through * decay + dh * b * f.a)
            da = da + dh * f.delta * b
            dq[16 + k] = dot(dh * f.delta, f.a)
            carried[k] = dh * keep
        ddelta = ddelta * sigmoid(f.raw)
        g["step_bias"] += ddelta
        dq[:16] = dots(p["step"], ddelta)
        g["step"] += f.q[:16, None] * ddelta
        da = da + dots(p["select"], dq)
        g["select"] += f.a[:, None] * dq
        s = sigmoid(f.c)
        dc = da * (s + f.c * s * (F(1) - s))
        g["taps_bias"] += dc
        for k in range(4):
            g["taps"][k] += dc * f.u[k]
            if t >= k:
                du[t - k] = du[t - k] + dc * p["taps"][k]
        dz[t] = np.concatenate([du[t], dgate])
        g["out"] += f.g[:, None] * r[t]
        r[t] = r[t] + normalise_back(f.x, f.inverse_x, p["norm"], dots(p["into"], dz[t]), g["norm"])
    for t, f in enumerate(fed):
        g["into"] += f.xn[:, None] * dz[t]
        g["embed"][f.byte] += r[t]
        for row in f.grams:
            g["grams"][row] += r[t]
        for row in f.guesses:
            g["guesses"][row] += d[t]


def tree(e):
    """7.13: `count` and TOP_BYTE."""
    count = [0] * 256 + [1 + int(share) for share in e * F(2**24)]
    for i in range(255, 0, -1):
        count[i] = count[2 * i] + count[2 * i + 1]
    best = min(range(256), key=lambda b: (-count[256 + b], b))
    p = (count[256 + best] << 8) // count[1]
    confidence = sum(bound < p for bound in (32, 64, 104, 152, 200, 232, 250))
    return count, best | confidence << 8


class Network:
    def __init__(self, d, e):
        self.steps, self.past = 0, 0
        self.w, self.v = first_weights(d, e), first_weights(d, e)
        self.m1, self.m2, self.g = ({n: np.zeros_like(x) for n, x in self.w.items()} for _ in range(3))
        self.nothing = [np.zeros(e, F)] * N, (np.zeros(e, F),) * 3
        self.state, self.chunk = self.nothing, []
        self.count, self.top_byte = [0] + [256 >> (i.bit_length() - 1) for i in range(1, 512)], 0

    def update(self, data):
        """7.16: what follows byte data[-1]."""
        if self.chunk:
            self.chunk[-1].target = data[-1]
        if len(self.chunk) == CHUNK:
            self.w = {name: x.copy() for name, x in self.v.items()}
            self.train()
            self.chunk = []
        self.past = (self.past << 8 | data[-1]) & 0xFFFFFF
        f = Feed(self.w, self.past, *self.state)
        self.chunk.append(f)
        self.state = f.h, f.u[:3]
        self.count, self.top_byte = tree(f.e)
        f.probability = f.e * (F(2**24) / F(self.count[1]))

    def train(self):
        """7.15."""
        for g in self.g.values():
            g[...] = 0
        backward(self.v, self.g, self.chunk)
        rate = F(0.001) + (F(0.004) - F(0.001)) / (F(1) + F(self.steps) / F(500))
        self.steps += 1
        p1, p2 = F(1), F(1)
        for _ in range(min(self.steps, 2000)):
            p1, p2 = p1 * F(0.8), p2 * F(0.999)
        c1, c2 = F(1) / (F(1) - p1), F(1) / (F(1) - p2)
        for name in self.v.keys() - {"grams", "guesses"}:
            g, m1, m2 = self.g[name], self.m1[name], self.m2[name]
            m1[...] = m1 * F(0.8) + g * (F(1) - F(0.8))
            m2[...] = m2 * F(0.999) + g * g * (F(1) - F(0.999))
            self.v[name] -= rate * (m1 * c1) / (np.sqrt(m2 * c2) + F(1e-6))
        for name, step, least in (("grams", rate * F(15), F(1e-12)), ("guesses", F(0.1), F(4e-5))):
            rows = sorted({row for f in self.chunk for row in getattr(f, name)})
            g = self.g[name][rows]
            self.m2[name][rows] += g * g
            self.v[name][rows] -= step * g / np.sqrt(self.m2[name][rows] + least)
