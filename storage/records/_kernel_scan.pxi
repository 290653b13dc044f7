# Going over whole batches by their headers: checks and index entries. Part of _kernel.pyx.

cdef enum:
    EPOCH_PAIR_BYTES = 16
    SLOTS = 256


cdef class KnownEpochs:
    """(leader epoch, start offset) pairs, and which of them a rising offset has reached."""

    cdef View pairs
    cdef Py_ssize_t reached, count

    def __cinit__(self, pairs):
        self.pairs = View(pairs)
        self.reached, self.count = -1, self.pairs.size // EPOCH_PAIR_BYTES

    cdef inline bint allow(self, int64_t base_offset, int32_t leader_epoch) noexcept nogil:
        """Whether the epoch is the known one there, or none is known. Offsets must not fall."""
        cdef const uint8_t *at = self.pairs.at
        while self.reached + 1 < self.count and load64(at, 2 * self.reached + 3) <= base_offset:
            self.reached += 1
        return self.reached < 0 or load64(at, 2 * self.reached) == leader_epoch


def skip_sound(data, checksum, int64_t lowest_offset):
    cdef BatchBytes batches = BatchBytes(data, checksum)
    cdef const uint8_t *start = batches.view.at
    cdef const uint8_t *end = start + batches.view.size
    cdef const uint8_t *at = start
    cdef int64_t expected = lowest_offset
    cdef Head head
    with nogil:
        while at < end:
            if (
                get_head(at, end - at, &head) != WHOLE
                or not expected <= head.base_offset < head.next_offset
                or not batches.matches(at, head.size)
            ):
                break
            at += head.size
            expected = head.next_offset
    return at - start, expected


cdef class IndexEntries:
    """Entries of a segment's two indexes in the making, in the bytes that an ``array`` takes."""

    cdef Memory memory
    cdef Py_ssize_t count, time_count, capacity
    cdef int64_t *times
    cdef uint32_t *offsets
    cdef uint32_t *positions
    cdef uint32_t *time_offsets

    def __cinit__(self, Py_ssize_t capacity):
        self.memory = Memory(capacity, 8 + 3 * 4)
        self.capacity = capacity
        self.times = <int64_t *>self.memory.at
        self.offsets = <uint32_t *>(self.times + capacity)
        self.positions = self.offsets + capacity
        self.time_offsets = self.positions + capacity

    cdef tuple packed(self):
        return (
            PyBytes_FromStringAndSize(<char *>self.offsets, 4 * self.count),
            PyBytes_FromStringAndSize(<char *>self.positions, 4 * self.count),
            PyBytes_FromStringAndSize(<char *>self.times, 8 * self.time_count),
            PyBytes_FromStringAndSize(<char *>self.time_offsets, 4 * self.time_count),
        )


def scan_batches(data, checksum, int64_t position, int64_t segment_base, int64_t expected,
                 int64_t gaps_end, known_epochs, int64_t last_epoch, int64_t interval, counted):
    cdef BatchBytes batches = BatchBytes(data, checksum)
    cdef KnownEpochs known = KnownEpochs(known_epochs)
    cdef list new_epochs = []
    cdef const uint8_t *start = batches.view.at
    cdef const uint8_t *end = start + batches.view.size
    cdef const uint8_t *at = start
    cdef int64_t since_index = counted[0], max_time = counted[1], max_offset = counted[2]
    cdef int64_t entered_time = counted[3]
    # The batches of two entries begin further apart than the interval, and than a header.
    cdef Py_ssize_t apart = max(interval, HEADER_BYTES - 1) + 1
    cdef IndexEntries entries = IndexEntries(batches.view.size // apart + 2)
    cdef Head head
    if position < 0 or segment_base < 0:
        raise ValueError(f"position {position} or base offset {segment_base} is negative")
    with nogil:
        while at < end:
            if get_head(at, end - at, &head) != WHOLE or head.base_offset < expected:
                break
            if head.base_offset > expected and expected >= gaps_end:
                break
            if (
                head.next_offset <= head.base_offset
                or head.base_offset < segment_base
                or head.next_offset - 1 - segment_base > INT32_MAX
                or position + (at - start) > UINT32_MAX
                or not batches.matches(at, head.size)
                or not known.allow(head.base_offset, head.leader_epoch)
            ):
                break
            if head.leader_epoch > last_epoch:
                last_epoch = head.leader_epoch
                with gil:
                    new_epochs.append((head.leader_epoch, head.base_offset))
            expected = head.next_offset
            if head.max_time > max_time:
                max_time, max_offset = head.max_time, expected - 1
            if since_index > interval:
                if entries.count == entries.capacity:
                    break
                entries.offsets[entries.count] = <uint32_t>(expected - 1 - segment_base)
                entries.positions[entries.count] = <uint32_t>(position + (at - start))
                entries.count += 1
                if max_time >= 0 and max_time > entered_time:
                    entered_time = max_time
                    entries.times[entries.time_count] = max_time
                    entries.time_offsets[entries.time_count] = <uint32_t>(max_offset - segment_base)
                    entries.time_count += 1
                since_index = 0
            since_index += head.size
            at += head.size
    return at - start, expected, (since_index, max_time, max_offset), entries.packed(), new_epochs


cdef bint has_whole(const uint8_t *at, Py_ssize_t size, const Head *head) noexcept nogil:
    """Whether its records, with the offset deltas from 0 on, fill the batch at ``at``."""
    cdef Batch batch
    cdef Fields fields
    cdef HeaderTotals totals = HeaderTotals(0, 0)
    cdef int32_t index
    batch.at, batch.end = at + HEADER_BYTES, at + size
    batch.base_offset, batch.last_delta, batch.count = 0, head.record_count - 1, head.record_count
    batch.base_time, batch.max_time, batch.is_append_time = head.base_time, 0, False
    for index in range(head.record_count):
        if get_checked(&batch, batch.at, index, &fields, &totals) != FITS:
            return False
        if fields.offset != index:
            return False
        batch.at = fields.end
    return batch.at == batch.end


def has_whole_records(data):
    """For a caller that has checked all but the records of the one batch in ``data``."""
    cdef View view = View(data)
    cdef Head head
    return get_head(view.at, view.size, &head) == WHOLE and has_whole(view.at, view.size, &head)


cdef struct Sender:
    int64_t producer_id
    int32_t base_sequence
    int16_t producer_epoch
    uint8_t attributes


cdef inline Sender sender_of(const uint8_t *at) noexcept nogil:
    cdef Sender sender
    sender.producer_id = big64(at + PRODUCER_AT)
    sender.producer_epoch = <int16_t>(big32(at + PRODUCER_AT + 8) >> 16)
    sender.base_sequence = <int32_t>big32(at + PRODUCER_AT + 10)
    sender.attributes = at[ATTRIBUTES_AT + 1]
    return sender


cdef struct Slot:
    int64_t producer_id
    int32_t later
    int16_t producer_epoch


cdef inline Py_ssize_t slot_of(int64_t producer_id) noexcept nogil:
    return <Py_ssize_t>((<uint64_t>producer_id * <uint64_t>0x9E3779B97F4A7C15) >> 56)


cdef Py_ssize_t drop_forgotten(
    const uint8_t *start, int32_t *places, Py_ssize_t count, int32_t window, int64_t history_end
) noexcept nogil:
    """Leave out what ``window`` later batches, or one of a newer epoch, make a state forget.

    How many remain. The first of each producer stays, so that producers become known in the same
    order. Below ``history_end`` only sequences count, whatever transaction they were of.
    """
    cdef int64_t first[SLOTS]
    cdef Slot slots[SLOTS]
    cdef Slot *slot
    cdef Sender sender
    cdef Py_ssize_t index, kept = 0, number
    cdef uint8_t special
    for index in range(SLOTS):
        first[index] = slots[index].producer_id = -2
        slots[index].later = slots[index].producer_epoch = 0
    for index in range(count - 1, -1, -1):
        sender = sender_of(start + places[index])
        slot = &slots[slot_of(sender.producer_id)]
        special = CONTROL if big64(start + places[index]) < history_end else TRANSACTIONAL | CONTROL
        if sender.attributes & special or sender.base_sequence < 0:
            if slot.producer_id == sender.producer_id:
                slot.producer_id = -1
        elif (
            slot.producer_id != sender.producer_id or slot.producer_epoch < sender.producer_epoch
        ):
            slot.producer_id, slot.producer_epoch = sender.producer_id, sender.producer_epoch
            slot.later = 1
        elif slot.producer_epoch == sender.producer_epoch and slot.later < window:
            slot.later += 1
        else:
            # Marked by a place that no batch has; the next loop closes the gaps.
            places[index] = ~places[index]
    for index in range(count):
        number = places[index] if places[index] >= 0 else ~places[index]
        sender = sender_of(start + number)
        if first[slot_of(sender.producer_id)] != sender.producer_id:
            first[slot_of(sender.producer_id)] = sender.producer_id
        elif places[index] < 0:
            continue
        places[kept] = <int32_t>number
        kept += 1
    return kept


cdef struct Ended:
    int64_t producer_id
    int16_t epoch
    int16_t data_epoch
    bint is_settled


cdef inline bint is_marker(const uint8_t *at) noexcept nogil:
    """Whether a control batch is as ``control.encode_marker`` writes it."""
    cdef const uint8_t *record = at + HEADER_BYTES
    return (
        big32(at + LENGTH_AT) + LENGTH_END == HEADER_BYTES + MARKER_RECORD_BYTES
        and big32(at + RECORD_COUNT_AT) == 1
        and at[ATTRIBUTES_AT + 1] & CODEC_MASK == 0
        and big32(record) == 0x20000000
        and big32(record + 4) >> 8 == 0x080000
        and record[7] == 0
        and record[8] <= 1
    )


cdef void mark_settled(
    const uint8_t *start, int32_t *places, Py_ssize_t count, int64_t settled_end
) noexcept nogil:
    """Mark what was committed below ``settled_end`` and is followed by data and a marker that stay.

    They make the producer's state anew, as their epochs are newer: data the remembered batches, a
    marker the rest. A mark is a place that no batch has.
    """
    cdef Ended slots[SLOTS]
    cdef Ended *slot
    cdef Sender sender
    cdef const uint8_t *at
    cdef Py_ssize_t index
    for index in range(SLOTS):
        slots[index].producer_id = -2
        slots[index].data_epoch = -1
    for index in range(count - 1, -1, -1):
        at = start + places[index]
        sender = sender_of(at)
        if sender.producer_id < 0:
            continue
        slot = &slots[slot_of(sender.producer_id)]
        if sender.attributes & CONTROL and is_marker(at):
            slot.is_settled = (
                slot.producer_id == sender.producer_id
                and slot.data_epoch >= 0
                and slot.epoch > sender.producer_epoch
                and at[HEADER_BYTES + 8] == 1
                and big64(at) < settled_end
            )
            if not slot.is_settled:
                if slot.producer_id != sender.producer_id:
                    slot.data_epoch = -1
                slot.producer_id, slot.epoch = sender.producer_id, sender.producer_epoch
        elif (
            slot.producer_id != sender.producer_id
            or sender.attributes & CONTROL
            or not sender.attributes & TRANSACTIONAL
        ):
            continue
        elif not slot.is_settled or sender.producer_epoch >= slot.data_epoch:
            slot.data_epoch = sender.producer_epoch
            continue
        if slot.is_settled:
            places[index] = ~places[index]


cdef Py_ssize_t drop_settled(
    const uint8_t *start, int32_t *places, Py_ssize_t count, int64_t settled_from
) noexcept nogil:
    """Leave out what is marked as settled; how many batches remain.

    But not before the first marker of a producer from ``settled_from`` on, as what that ends may
    have begun elsewhere; so the first batch stays. Data that stay have their marker: else a later
    one that aborts would begin with them.
    """
    cdef Ended slots[SLOTS]
    cdef Ended *slot
    cdef Sender sender
    cdef const uint8_t *at
    cdef Py_ssize_t index, kept = 0
    cdef bint is_left_out
    for index in range(SLOTS):
        slots[index].producer_id = -2
    for index in range(count):
        is_left_out = places[index] < 0
        if is_left_out:
            places[index] = ~places[index]
        at = start + places[index]
        sender = sender_of(at)
        slot = &slots[slot_of(sender.producer_id)]
        if slot.producer_id != sender.producer_id:
            slot.producer_id, slot.is_settled = sender.producer_id, False
        if sender.attributes & CONTROL and is_marker(at):
            is_left_out = is_left_out and slot.is_settled
            slot.is_settled = big64(at) >= settled_from
        elif not is_left_out:
            slot.is_settled = False
        else:
            is_left_out = slot.is_settled
        if not is_left_out:
            places[kept] = places[index]
            kept += 1
    return kept


def state_batches(data, checksum, bint is_checked, int64_t expected, known_epochs,
                  int64_t last_epoch, int32_t window, int64_t history_end,
                  int64_t settled_from, int64_t settled_end):
    cdef BatchBytes batches = BatchBytes(data, checksum)
    cdef KnownEpochs known = KnownEpochs(known_epochs)
    cdef const uint8_t *start = batches.view.at
    cdef const uint8_t *end
    cdef const uint8_t *at = start
    cdef Py_ssize_t count = 0, index, last = -1
    cdef Memory memory
    cdef int32_t *places
    cdef bint is_needed
    cdef Head head
    # Places are int32, and one bit of them is a mark; the caller reads on where this ends.
    end = start + min(batches.view.size, <Py_ssize_t>INT32_MAX)
    memory = Memory((end - start) // HEADER_BYTES, sizeof(int32_t))
    places = <int32_t *>memory.at
    with nogil:
        while at < end:
            if get_head(at, end - at, &head) != WHOLE or not (
                expected <= head.base_offset < head.next_offset
            ):
                break
            if not is_checked and not (
                batches.matches(at, head.size) and known.allow(head.base_offset, head.leader_epoch)
            ):
                break
            if head.leader_epoch > last_epoch:
                # The start of an epoch must be reported, and the first batch is never left out.
                if at > start:
                    break
                last_epoch = head.leader_epoch
            last = at - start
            if head.attributes & CONTROL:
                is_needed = head.base_offset >= history_end
            else:
                is_needed = sender_of(at).producer_id >= 0
            if is_needed or last == 0:
                places[count] = <int32_t>last
                count += 1
            expected = head.next_offset
            at += head.size
        mark_settled(start, places, count, settled_end)
        count = drop_settled(start, places, count, settled_from)
        count = drop_forgotten(start, places, count, window, history_end)
    found = [places[index] for index in range(count)]
    if last >= 0 and (not found or found[count - 1] != last):
        found.append(last)
    return at - start, expected, last_epoch, found
