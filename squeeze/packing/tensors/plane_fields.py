"""What is known of a plane of a coded tensor: columns of a row of int64. Places are of bytes in the payload."""

WIDTH = 0
RAW_BITS = 1
PRECISION = 2  # 0: every prefix is the constant, or there is none
CONSTANT = 3
TABLES = 4
SYMBOLS = 5
IDS = 6  # uint8 [segments], where there are several tables
COUNTS = 7  # of words, uint32 [segments]
STATES = 8  # uint32 [segments, lanes]
WORDS_AT = 9  # uint16
RAW = 10  # uint32, or the values of a plane without prefix
FIELD = 11  # see rans.decoding_table
TABLE = 12  # places in the array of decoding tables
NAMES = 13
COLUMNS = 14
