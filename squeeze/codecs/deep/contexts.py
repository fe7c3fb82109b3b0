"""The contexts of levels 4 to 6 as a predictor: four mixer inputs for each context.

- An adaptive map gives the probability of the context's bit history: a stretched logit, and the difference from one
  half.
- An adaptive counter gives the probability of a one in this context.
- A run model predicts the byte that last followed the context, by how often in a row it did.

Nibbles of contexts are hashed to slots of 7 histories and 7 counters, as in lpaq and paq8.

What contexts agree on is most of what they predict. So each input has the mean over all contexts of its kind
subtracted. These means are inputs of their own, and so are those of three groups of contexts.
"""

from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs.deep.predictor import WEIGHT, Extent, Predictor
from squeeze.codecs.deep.presets import GROUPS, DeepPreset, group_of, name_of
from squeeze.numerics import mixer_vectors
from squeeze.numerics.bitmodels import context_state, histories, layout, match, slots
from squeeze.numerics.bitmodels.contexts import mix_hash
from squeeze.numerics.jit import inline, prefetch

PER_CONTEXT = 4  # inputs of a context
_MEAN_WEIGHT, _MEAN_WEIGHT_WITH_NETWORK = 0.84, 0.5  # first weight of the mean of stretched logits
_MEAN_SCALE = np.float32(2)
_MAP_LIMIT, _RUN_LIMIT = 511, 255  # largest counts of adaptive maps
FRESH_COUNT = 6  # count that the first probabilities of adaptive maps start with

_MEANS = "means of contexts"

# Those of a dictionary's memory, 0 without one, and the first nibble after which slots were prefetched.
_STATE = layout.fields("buckets run_mask memory_buckets fetched")


class Contexts(NamedTuple):
    """The arrays of n contexts."""

    state: Any  # a record of _STATE
    specs: np.ndarray  # uint64 [n, 4]
    groups: np.ndarray  # int64 [GROUPS + 1]: first context of each group
    hashes: np.ndarray  # uint64 [n]
    slots: np.ndarray  # uint8: hash table, aligned to cache lines
    counters: np.ndarray  # the same memory as uint16
    history_at: np.ndarray  # int64 [n]
    counter_at: np.ndarray  # int64 [n]
    entry: np.ndarray  # int64 [n]: entry of `maps`
    maps: np.ndarray  # uint32 [n * 256]
    runs: np.ndarray  # uint16 [n, 2^bits]
    run_at: np.ndarray  # int64 [n]
    run_entry: np.ndarray  # int64 [n]: entry of `run_maps`, -1 if the run predicts another byte
    run_maps: np.ndarray  # uint32 [n * RUN_MAP]
    memory: np.ndarray  # uint8: slots of a dictionary's text, read only
    memory_counters: np.ndarray  # the same memory as uint16


def _build(preset: DeepPreset, extent: Extent) -> Contexts:
    n = len(preset.contexts)
    # A byte takes two slots of a context, and a bucket holds three.
    buckets = min(max((extent.size - extent.text_size) * n // 3, 1 << 8), preset.buckets)
    memory = layout.aligned_zeros(buckets * slots.BUCKET)
    run_bits = min(max(extent.size.bit_length(), 8), 20)
    return Contexts(
        state=layout.record(_STATE, buckets=buckets, run_mask=(1 << run_bits) - 1),
        specs=np.array(preset.contexts, np.uint64),
        groups=np.searchsorted([group_of(context) for context in preset.contexts], np.arange(GROUPS + 1)),
        hashes=np.zeros(n, np.uint64),
        slots=memory,
        counters=memory.view(np.uint16),
        history_at=np.zeros(n, np.int64),
        counter_at=np.zeros(n, np.int64),
        entry=np.zeros(n, np.int64),
        maps=np.tile(histories.START | np.uint32(FRESH_COUNT), n),
        runs=np.zeros((n, 1 << run_bits), np.uint16),
        run_at=np.zeros(n, np.int64),
        run_entry=np.zeros(n, np.int64),
        run_maps=np.full(n * slots.RUN_MAP, match.START_ENTRY, np.uint32),
        memory=memory[:0],
        memory_counters=memory.view(np.uint16)[:0],
    )


def _weights(preset: DeepPreset) -> np.ndarray:
    of_contexts = np.full(PER_CONTEXT * len(preset.contexts), WEIGHT, np.float32)
    of_means = np.zeros(PER_CONTEXT * (1 + GROUPS), np.float32)
    of_means[0] = _MEAN_WEIGHT_WITH_NETWORK if preset.network else _MEAN_WEIGHT
    return np.concatenate([of_contexts, of_means])


def _names(preset: DeepPreset) -> list[str]:
    names = [name_of(context) for context in preset.contexts]
    return [name for name in names for _ in range(PER_CONTEXT)] + [_MEANS] * (PER_CONTEXT * (1 + GROUPS))


def _remember(own: Contexts, before: Contexts) -> Contexts:
    """Start from the slots and runs of models that have read a dictionary's text."""
    runs = layout.widen_table(before.runs, own.runs.shape[1])
    own.state.memory_buckets, own.state.run_mask = before.state.buckets, runs.shape[1] - 1
    return own._replace(memory=before.slots, memory_counters=before.slots.view(np.uint16), runs=runs)


@inline
def _fetch_slots(own, salt):
    for i in range(own.hashes.size):
        slots.fetch(own.slots, mix_hash(own.hashes[i], salt), own.state.buckets)


@inline
def _begin_byte(m, own):
    """Hash the contexts for the next byte, and prefetch their slots."""
    r = m.registers
    for i in range(own.hashes.size):
        h = mix_hash(r[context_state.HISTORY] & own.specs[i, 3], np.uint64(i))
        h = mix_hash(r[own.specs[i, 0]] & own.specs[i, 1], h)
        own.hashes[i] = mix_hash(r[own.specs[i, 2]], h)
        own.run_at[i] = np.int64(own.hashes[i] >> np.uint64(40)) & own.state.run_mask
        prefetch(own.runs, i * own.runs.shape[1] + own.run_at[i])
    _fetch_slots(own, np.uint64(0))


@inline
def _fetch_nibble(m, own, partial):
    """Prefetch the slots of the second nibble, after the first one or if it is likely to be `partial`."""
    own.state.fetched = partial
    _fetch_slots(own, np.uint64(partial))


@inline
def _begin_nibble(m, own):
    """Find the slots of this nibble; all are prefetched before the first is read."""
    salt = np.uint64(0)
    if m.state.shift == 3:
        salt = np.uint64(m.state.partial)
        if own.state.fetched != m.state.partial:
            _fetch_nibble(m, own, m.state.partial)
    buckets, remembered = own.state.buckets, own.state.memory_buckets
    for i in range(own.hashes.size):
        h = mix_hash(own.hashes[i], salt)
        slot = slots.find_slot(own.slots, own.counters, h, buckets)
        own.history_at[i] = slots.histories_at(slot)
        if remembered and own.slots[own.history_at[i] + 1] == 0:
            slots.recall(own.slots, own.counters, slot, own.memory, own.memory_counters, h, remembered)
        own.counter_at[i] = slots.counters_at(slot)


@inline
def _gather(m, own, inputs):
    """Write four inputs for each context and their means, and count the contexts that were seen before."""
    node, known, n = m.state.node, 0, own.hashes.size
    partial, shift, zero = m.state.partial, m.state.shift, np.float32(0)
    for i in range(n):
        history = np.int64(own.slots[np.uint64(own.history_at[i] + node)])
        entry = i * 256 + history
        own.entry[i] = entry
        p = np.int64(own.maps[np.uint64(entry)] >> np.uint32(20))
        live = np.float32(1.0) if history else zero
        inputs[4 * i] = slots.STRETCH_FLOAT[np.uint64(p)] * live
        inputs[4 * i + 1] = np.float32(p - 2048) * np.float32(1 / 1024) * live
        c = np.uint64(own.counters[np.uint64(own.counter_at[i] + node)])
        inputs[4 * i + 2] = slots.STRETCH_FLOAT[c >> np.uint64(4)] * slots.CONFIDENCE[c & np.uint64(15)]
        known += history > 0
        run = np.int64(own.runs[i, np.uint64(own.run_at[i])])
        value, run_entry = zero, -1
        if run and ((run & 255) | 256) >> (shift + 1) == partial:
            run_entry = i * slots.RUN_MAP + min(run >> 8, 63) * 8 + shift
            value = slots.STRETCH_FLOAT[own.run_maps[np.uint64(run_entry)] >> np.uint32(20)]
            if (run >> shift) & 1 == 0:
                value = -value
        own.run_entry[i] = run_entry
        inputs[4 * i + 3] = value
    mixer_vectors.centre(inputs, own.groups, _MEAN_SCALE)  # so one step of learning tells contexts apart
    m.state.known = known * 15 // n
    m.state.history2, m.state.history3 = own.entry[2] & 255, own.entry[3] & 255


@inline
def share_means(m, own, inputs, weights, known, terms):
    """Compute each context's contribution to a logit, with the contributions of means spread over the contexts.

    Args:
        m: what predictors see of the model.
        own: the contexts.
        inputs: float32, the mixer's inputs after `mixer_vectors.centre`.
        weights: float32, the mixer's weights.
        known: float32, scratch: which inputs were not 0.
        terms: float64, the contributions to write.
    """
    n, node = own.hashes.size, m.state.node
    means, zero, one = PER_CONTEXT * n, np.float32(0), np.float32(1)
    for i in range(n):
        k = PER_CONTEXT * i
        known[k] = known[k + 1] = one if own.entry[i] & 255 else zero
        known[k + 2] = one if own.counters[own.counter_at[i] + node] & np.uint16(15) else zero
        known[k + 3] = one if own.run_entry[i] >= 0 else zero
    for kind in range(PER_CONTEXT):
        total, of_inputs, of_mean = zero, zero, _MEAN_SCALE * weights[means + kind]
        for g in range(GROUPS):
            count, place = zero, means + PER_CONTEXT * (1 + g) + kind
            for k in range(PER_CONTEXT * own.groups[g] + kind, PER_CONTEXT * own.groups[g + 1], PER_CONTEXT):
                count += known[k]
                of_inputs += known[k] * weights[k]
            of_mean -= _MEAN_SCALE * weights[place]
            total += count
            terms[place] = _MEAN_SCALE * weights[place] / max(count, one)
        mean = inputs[means + kind] / _MEAN_SCALE
        of_mean = (of_mean - of_inputs) / max(total, one)
        for g in range(GROUPS):
            of_both = of_mean + np.float32(terms[means + PER_CONTEXT * (1 + g) + kind])
            for k in range(PER_CONTEXT * own.groups[g] + kind, PER_CONTEXT * own.groups[g + 1], PER_CONTEXT):
                terms[k] = known[k] * (inputs[k] + mean) * (weights[k] + of_both)
    for k in range(means, means + PER_CONTEXT * (1 + GROUPS)):
        terms[k] = 0.0


@inline
def _update(m, own, bit):
    node, shift, offset = m.state.node, m.state.shift, np.uint32(bit << 8)
    for i in range(own.hashes.size):
        index = np.uint64(own.history_at[i] + node)
        own.slots[index] = histories.NEXT[offset | np.uint32(own.slots[index])]
        histories.learn(own.maps, own.entry[i], bit, _MAP_LIMIT)
        slots.learn_counter(own.counters, own.counter_at[i] + node, bit)
        index = own.run_entry[i]
        if index >= 0:
            hit = np.int64(((np.int64(own.runs[i, np.uint64(own.run_at[i])]) >> shift) & 1) == bit)
            histories.learn(own.run_maps, index, hit, _RUN_LIMIT)


@inline
def _end_byte(m, own, position):
    byte = np.int64(m.data[position])
    for i in range(own.hashes.size):
        index = own.run_at[i]
        own.runs[i, index] = np.uint16(slots.update_run(np.int64(own.runs[i, index]), byte))


PREDICTOR = Predictor(
    _build,
    _weights,
    _gather,
    _names,
    begin_byte=_begin_byte,
    fetch_nibble=_fetch_nibble,
    begin_nibble=_begin_nibble,
    update=_update,
    end_byte=_end_byte,
    maps=("maps", "run_maps"),
    remember=_remember,
    remembers=("slots", "runs"),
)
