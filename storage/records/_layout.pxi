# Where the fields of a batch lie: ``layout.py`` has the same names and numbers, and explains them.

cdef enum:
    LENGTH_AT = 8
    LENGTH_END = 12
    LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    CHECKED_AT = 21
    ATTRIBUTES_AT = 21
    LAST_OFFSET_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_AT = 43
    RECORD_COUNT_AT = 57
    HEADER_BYTES = 61
    RECORD_BYTES_MIN = 7
    MARKER_RECORD_BYTES = 17
    MAGIC = 2
    CODEC_MASK = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    DELETE_HORIZON = 0x40
