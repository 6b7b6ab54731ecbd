/* Decodes a batch of JSON messages into Arrow columns in one pass. Each message is taken exactly, or not at all.

   Rules:

   1. Each message is read by itself; only loads that stay within the buffer may touch bytes of another one. An unusual
      message (not JSON, not UTF-8, a declared field twice, a value of another type or one that the type cannot hold
      exactly, deep nesting) is not taken: its part of the columns is undone, and the caller reads it in another way. So
      this file can only fail in two ways: by taking too little, which costs time, or too much.
   2. Hostile bytes are the normal case. Every step is bounded by the message's end, depth by the schema and `DEEPEST`,
      and growth by the rules of `columns.h`. Nothing relies on undefined behavior.
   3. No global state. A reader is used by one thread at a time. Its columns live from `kde_read` to `kde_take`. */

#include "columns.h"

#if defined(_WIN32)
#define PUBLIC __declspec(dllexport)
#else
#define PUBLIC __attribute__((visibility("default")))
#endif

enum { NULLABLE = 1, LENIENT = 2 };
enum { NOT_TAKEN = 0, TAKEN = 1, TAKEN_WITH_UNKNOWN = 2 };
enum { PARTS = 8, SIZES = 4, FEW_MAP_KEYS = 16, FIRST_KEY_BYTES = 256, LONG_VALUE = 256 };

typedef struct {
    node *nodes; /* the first one is the record */
    int32_t count;
    uint8_t *names;
    uint64_t *powers;
    area key;
    text limit, skipped; /* also a long value of a field without a column, in the block that is being read */
    int64_t skipped_size;
    bool unknown, without_memory;
} reader;

static text read_value(reader *self, node *at, text from, text end);

static inline text failed_memory(reader *self) {
    self->without_memory = true;
    return NULL;
}

static inline text kept(reader *self, bool done, text at) { return done ? at : failed_memory(self); }

/* Appends the unescaped content of a string to the first `size` bytes; starts after its opening quote. */
static inline __attribute__((always_inline)) text copy_string(reader *self, area *place, int64_t *size, text at, text end) {
    text begin = at;
    for (;;) {
        at = plain_run(at, end, self->limit);
        if (at == end) {
            return NULL;
        }
        if (*at == '"') {
            return kept(self, add_bytes(place, size, begin, at - begin), at + 1);
        }
        if (*at == '\\') {
            uint8_t character[4];
            int count;
            if (!add_bytes(place, size, begin, at - begin)) {
                return failed_memory(self);
            }
            at = unescape(at, end, character, &count);
            if (at == NULL) {
                return NULL;
            }
            if (!add_bytes(place, size, character, count)) {
                return failed_memory(self);
            }
            begin = at;
        } else if (*at >= 0x80) {
            at = skip_characters(at, end);
            if (at == NULL) {
                return NULL;
            }
        } else {
            return NULL; /* a control character */
        }
    }
}

/* Like `copy_string`, into `key`, the buffer that uncommon code uses for strings. */
static __attribute__((noinline)) text copy_key(reader *self, int64_t *size, text at, text end) {
    *size = 0;
    return copy_string(self, &self->key, size, at, end);
}

static inline text end_bytes(reader *self, node *at, int64_t size, text end) {
    return kept(self, add_offset(at, size) && end_entry(at, true), end);
}

static inline text read_string(reader *self, node *at, text from, text end) {
    int64_t size = offset_at(at, at->length);
    from = copy_string(self, &at->data, &size, from, end);
    return from == NULL ? NULL : end_bytes(self, at, size, from);
}

static text read_json(reader *self, node *at, text from, text end) {
    int64_t size = offset_at(at, at->length);
    text behind = skip_value(from, end, self->limit);
    if (behind == NULL) {
        return NULL;
    }
    return add_bytes(&at->data, &size, from, behind - from) ? end_bytes(self, at, size, behind) : failed_memory(self);
}

static text read_base64(reader *self, node *at, text from, text end) {
    int64_t size = offset_at(at, at->length);
    int count = 3;
    while (from < end && *from != '"') {
        uint8_t bytes[3] = {0, 0, 0};
        if (count != 3 || end - from < 4) {
            return NULL;
        }
        count = read_quartet(from, bytes);
        if (count == 0) {
            return NULL;
        }
        if (!add_bytes(&at->data, &size, bytes, count)) {
            return failed_memory(self);
        }
        from += 4;
    }
    return from == end ? NULL : end_bytes(self, at, size, from + 1);
}

/* Reads base64, also in a string with escapes: some producers write each slash as `\/`. Rarely used, so not inlined. */
static __attribute__((noinline)) text read_binary(reader *self, node *at, text from, text end) {
    int64_t size;
    text behind = read_base64(self, at, from, end);
    if (behind != NULL) {
        return behind;
    }
    behind = copy_key(self, &size, from, end);
    if (behind == NULL) {
        return NULL;
    }
    if (!add_bytes(&self->key, &size, (const uint8_t *)"\"", 1)) {
        return failed_memory(self);
    }
    return read_base64(self, at, self->key.bytes, self->key.bytes + size) == NULL ? NULL : behind;
}

static text read_hex(reader *self, node *at, text from, text end) {
    int64_t size = offset_at(at, at->length);
    while (from < end && *from != '"') {
        uint8_t byte;
        if (end - from < 2 || nibble(from[0]) < 0 || nibble(from[1]) < 0) {
            return NULL;
        }
        byte = (uint8_t)(nibble(from[0]) << 4 | nibble(from[1]));
        if (!add_bytes(&at->data, &size, &byte, 1)) {
            return failed_memory(self);
        }
        from += 2;
    }
    return from == end ? NULL : end_bytes(self, at, size, from + 1);
}

/* Reads a number, or a string of one where that is allowed. */
static inline text read_quotable(text at, text end, bool may_be_quoted, number *found) {
    const bool quoted = may_be_quoted && *at == '"';
    at = read_number(at + quoted, end, found);
    if (at == NULL || !quoted) {
        return at;
    }
    return at < end && *at == '"' ? at + 1 : NULL;
}

static inline text read_integer(reader *self, node *at, text from, text end) {
    number found;
    int64_t value;
    from = read_quotable(from, end, at->lenient, &found);
    if (from == NULL || !(at->lenient ? to_whole(&found, &value) : to_integer(&found, &value))) {
        return NULL;
    }
    switch (at->kind) {
    case BYTE: {
        const int8_t narrow = (int8_t)value;
        return narrow == value ? kept(self, add_fixed(at, &narrow, 1), from) : NULL;
    }
    case SHORT: {
        const int16_t narrow = (int16_t)value;
        return narrow == value ? kept(self, add_fixed(at, &narrow, 2), from) : NULL;
    }
    case INTEGER: {
        const int32_t narrow = (int32_t)value;
        return narrow == value ? kept(self, add_fixed(at, &narrow, 4), from) : NULL;
    }
    default:
        return kept(self, add_fixed(at, &value, 8), from);
    }
}

static text read_floating(reader *self, node *at, text from, text end) {
    number found;
    double value;
    const text begin = from;
    from = read_quotable(from, end, at->lenient, &found);
    if (from == NULL || !(found.too_long ? long_to_double(begin, end, self->powers, &value)
                                         : to_double(&found, self->powers, &value))) {
        return NULL;
    }
    if (at->kind == DOUBLE) {
        return kept(self, add_fixed(at, &value, 8), from);
    }
    if (value > FLT_MAX || value < -FLT_MAX) {
        return NULL; /* some of them round to FLT_MAX; the caller decides */
    }
    const float narrow = (float)value;
    return kept(self, add_fixed(at, &narrow, 4), from);
}

static text read_decimal(reader *self, node *at, text from, text end) {
    number found;
    wide units;
    const text begin = from;
    from = read_quotable(from, end, true, &found);
    if (from == NULL || !(found.too_long ? long_to_decimal(begin, end, at->scale, at->limit, &units)
                                         : to_decimal(&found, at->scale, at->limit, &units))) {
        return NULL;
    }
    if (at->kind == DECIMAL) {
        if (found.negative) { /* as two's complement */
            units.low = 0 - units.low;
            units.high = ~units.high + (units.low == 0);
        }
        const uint64_t words[2] = {units.low, units.high};
        return kept(self, add_fixed(at, words, 16), from);
    }
    if (units.high != 0 || units.low > (uint64_t)INT64_MAX) {
        return NULL;
    }
    const int64_t microseconds = found.negative ? -(int64_t)units.low : (int64_t)units.low;
    if (microseconds < FIRST_DAY * DAY_S * SECOND_US || microseconds >= END_DAY * DAY_S * SECOND_US) {
        return NULL;
    }
    return kept(self, add_fixed(at, &microseconds, 8), from);
}

static text read_time(reader *self, node *at, text from, text end) {
    int64_t value;
    if (at->kind != DATE) {
        from = read_moment(from, end, at->kind == TIMESTAMP, &value);
        return from == NULL ? NULL : kept(self, add_fixed(at, &value, 8), from);
    }
    if (end - from < 11) {
        return NULL;
    }
    from = read_day(from, &value);
    if (from == NULL || *from != '"') {
        return NULL;
    }
    const int32_t days = (int32_t)value;
    return kept(self, add_fixed(at, &days, 4), from + 1);
}

static inline uint32_t hash(text bytes, int64_t size) {
    uint32_t found = UINT32_C(2166136261);
    for (int64_t place = 0; place < size; place++) {
        found = (found ^ bytes[place]) * UINT32_C(16777619);
    }
    return found ^ found >> 15;
}

static inline int32_t find_field(const node *at, text name, int64_t size) {
    for (uint32_t slot = hash(name, size);; slot++) {
        const int32_t field = at->slots[slot & at->slot_mask];
        if (field < 0) {
            return -1;
        }
        if (at->children[field].name_size == size &&
            (size == 0 || memcmp(at->children[field].name, name, (size_t)size) == 0)) {
            return field;
        }
    }
}

/* Whether the field's name and a quote are here. */
static inline bool is_named(const node *field, text at, text end, text limit) {
    const int32_t size = field->name_size;
    if (!field->is_plain_name || end - at <= size) {
        return false;
    }
#ifdef KDE_LITTLE_ENDIAN
    if (size < 16 && limit - at >= 16) {
        return (((load_word(at) & field->masks[0]) ^ field->words[0]) |
                ((load_word(at + 8) & field->masks[1]) ^ field->words[1])) == 0;
    }
#else
    (void)limit;
#endif
    return at[size] == '"' && memcmp(at, field->name, (size_t)size) == 0;
}

/* Skips a member's name, whose opening quote was read, and the colon and space after it. `*field` becomes the field of
   that name, or -1; `last` is the previous one. */
static inline text read_name(reader *self, node *at, text from, text end, int32_t last, int32_t *field) {
    const int32_t likely = at->after[last + 1];
    if (is_named(&at->children[likely], from, end, self->limit)) {
        *field = likely;
        from += at->children[likely].name_size + 1;
    } else {
        text begin = from;
        int64_t size;
        from = plain_run(from, end, self->limit);
        if (from < end && *from == '"') {
            *field = find_field(at, begin, from - begin);
            from++;
        } else {
            from = copy_key(self, &size, begin, end);
            if (from == NULL) {
                return NULL;
            }
            *field = find_field(at, self->key.bytes, size);
        }
        if (*field >= 0) {
            at->after[last + 1] = *field;
        }
    }
    from = skip_space(from, end);
    return from == end || *from != ':' ? NULL : skip_space(from + 1, end);
}

/* Skips the comma and space after a member, or the bracket that ends the object or array. */
static inline text behind_member(text from, text end, uint8_t closing, bool *ended) {
    from = skip_space(from, end);
    if (from == end) {
        return NULL;
    }
    *ended = *from == closing;
    if (*ended) {
        return from + 1;
    }
    return *from == ',' ? skip_space(from + 1, end) : NULL;
}

/* Skips the value of a field without a column. Records that carry their schema repeat one long value: an object with
   the bytes of one that was skipped in this block is not parsed again. */
static __attribute__((noinline)) text skip_unknown(reader *self, text from, text end) {
    if (self->skipped_size > 0 && end - from >= self->skipped_size &&
        memcmp(from, self->skipped, (size_t)self->skipped_size) == 0) {
        return from + self->skipped_size;
    }
    text behind = skip_value(from, end, self->limit);
    if (behind != NULL && *from == '{' && behind - from >= LONG_VALUE) {
        self->skipped = from;
        self->skipped_size = behind - from;
    }
    return behind;
}

/* Reads a struct's object, whose opening brace was read. */
static text read_struct(reader *self, node *at, text from, text end) {
    const int64_t entry = at->length;
    int32_t seen = 0, last = -1;
    from = skip_space(from, end);
    if (from < end && *from == '}') {
        from++;
    } else {
        for (bool ended = false; !ended;) {
            int32_t field;
            if (from == end || *from != '"') {
                return NULL;
            }
            from = read_name(self, at, from + 1, end, last, &field);
            if (from == NULL) {
                return NULL;
            }
            if (field < 0) {
                self->unknown = true;
                from = skip_unknown(self, from, end);
            } else if (at->children[field].length != entry) {
                return NULL; /* given twice */
            } else {
                from = read_value(self, &at->children[field], from, end);
                last = field;
                seen++;
            }
            if (from == NULL) {
                return NULL;
            }
            from = behind_member(from, end, '}', &ended);
            if (from == NULL) {
                return NULL;
            }
        }
    }
    if (seen < at->child_count) {
        for (int32_t child = 0; child < at->child_count; child++) {
            node *part = &at->children[child];
            if (part->length == entry) {
                if (!part->nullable) {
                    return NULL;
                }
                if (!add_null(part)) {
                    return failed_memory(self);
                }
            }
        }
    }
    return kept(self, end_entry(at, true), from);
}

static text read_list(reader *self, node *at, text from, text end) {
    from = skip_space(from, end);
    if (from < end && *from == ']') {
        from++;
    } else {
        for (bool ended = false; !ended;) {
            from = read_value(self, at->children, from, end);
            if (from == NULL) {
                return NULL;
            }
            from = behind_member(from, end, ']', &ended);
            if (from == NULL) {
                return NULL;
            }
        }
    }
    return kept(self, add_offset(at, at->children->length) && end_entry(at, true), from);
}

static inline bool is_same_key(const node *keys, int64_t left, int64_t right) {
    const int32_t begin = offset_at(keys, left), size = offset_at(keys, left + 1) - begin;
    const int32_t other = offset_at(keys, right);
    return offset_at(keys, right + 1) - other == size &&
           (size == 0 || memcmp(keys->data.bytes + other, keys->data.bytes + begin, (size_t)size) == 0);
}

/* Whether the keys of a map, from its first one to the last key so far, are all different. False also for keys that are
   made to collide, and if memory is short. */
static __attribute__((noinline)) bool are_different(reader *self, const node *keys, int64_t first) {
    const int64_t count = keys->length - first;
    if (count <= FEW_MAP_KEYS) {
        for (int64_t key = first + 1; key < keys->length; key++) {
            for (int64_t other = first; other < key; other++) {
                if (is_same_key(keys, key, other)) {
                    return false;
                }
            }
        }
        return true;
    }
    int64_t slots = FEW_MAP_KEYS, steps = count * FEW_MAP_KEYS;
    while (slots < count * 2) {
        slots *= 2;
    }
    if (!room(&self->key, slots * (int64_t)sizeof(int32_t))) {
        self->without_memory = true;
        return false;
    }
    int32_t *seen = (int32_t *)(void *)self->key.bytes; /* which holds no name now */
    memset(seen, 0xFF, (size_t)slots * sizeof *seen);
    for (int64_t key = first; key < keys->length; key++) {
        const int32_t begin = offset_at(keys, key);
        const int32_t size = offset_at(keys, key + 1) - begin;
        uint32_t slot = size == 0 ? 0 : hash(keys->data.bytes + begin, size) & (uint32_t)(slots - 1);
        for (; seen[slot] >= 0; slot = (slot + 1) & (uint32_t)(slots - 1)) {
            if (--steps < 0 || is_same_key(keys, key, first + seen[slot])) {
                return false;
            }
        }
        seen[slot] = (int32_t)(key - first);
    }
    return true;
}

static text read_map(reader *self, node *at, text from, text end) {
    node *entries = at->children, *keys = &entries->children[0], *values = &entries->children[1];
    const int64_t first = entries->length;
    from = skip_space(from, end);
    if (from < end && *from == '}') {
        from++;
    } else {
        for (bool ended = false; !ended;) {
            if (from == end || *from != '"') {
                return NULL;
            }
            from = read_string(self, keys, from + 1, end);
            if (from == NULL) {
                return NULL;
            }
            from = skip_space(from, end);
            if (from == end || *from != ':') {
                return NULL;
            }
            from = read_value(self, values, skip_space(from + 1, end), end);
            if (from == NULL) {
                return NULL;
            }
            if (!end_entry(entries, true)) {
                return failed_memory(self);
            }
            from = behind_member(from, end, '}', &ended);
            if (from == NULL) {
                return NULL;
            }
        }
    }
    if (!are_different(self, keys, first)) {
        return NULL;
    }
    return kept(self, add_offset(at, entries->length) && end_entry(at, true), from);
}

static inline text read_boolean(reader *self, node *at, text from, text end) {
    const bool quoted = at->lenient && *from == '"';
    from += quoted;
    const bool value = from < end && *from == 't';
    from = value ? skip_word(from, end, "true", 4) : skip_word(from, end, "false", 5);
    if (from != NULL && quoted) {
        from = from < end && *from == '"' ? from + 1 : NULL;
    }
    return from == NULL ? NULL : kept(self, add_bit(at, value), from);
}

static text read_value(reader *self, node *at, text from, text end) {
    if (from == end) {
        return NULL;
    }
    if (*from == 'n') {
        from = skip_word(from, end, "null", 4);
        return from == NULL || !at->nullable ? NULL : kept(self, add_null(at), from);
    }
    switch (at->kind) {
    case BYTE: case SHORT: case INTEGER: case LONG:
        return read_integer(self, at, from, end);
    case FLOAT: case DOUBLE:
        return read_floating(self, at, from, end);
    case DECIMAL: case EPOCH:
        return read_decimal(self, at, from, end);
    case BOOLEAN:
        return read_boolean(self, at, from, end);
    case JSON:
        return read_json(self, at, from, end);
    case STRING:
        if (*from == '"') {
            return read_string(self, at, from + 1, end);
        }
        return at->lenient ? read_json(self, at, from, end) : NULL;
    case BASE64:
        return *from == '"' ? read_binary(self, at, from + 1, end) : NULL;
    case HEX:
        return *from == '"' ? read_hex(self, at, from + 1, end) : NULL;
    case DATE: case TIMESTAMP: case TIMESTAMP_NTZ:
        return *from == '"' ? read_time(self, at, from + 1, end) : NULL;
    case STRUCT:
        return *from == '{' ? read_struct(self, at, from + 1, end) : NULL;
    case LIST:
        return *from == '[' ? read_list(self, at, from + 1, end) : NULL;
    case MAP:
        return *from == '{' ? read_map(self, at, from + 1, end) : NULL;
    default:
        return NULL;
    }
}

static bool read_message(reader *self, text from, text end) {
    from = skip_space(from, end);
    if (from == end || *from != '{') {
        return false;
    }
    from = read_struct(self, self->nodes, from + 1, end);
    return from != NULL && skip_space(from, end) == end;
}

PUBLIC void kde_free(reader *self) {
    if (self == NULL) {
        return;
    }
    for (int32_t place = 0; self->nodes != NULL && place < self->count; place++) {
        node *at = &self->nodes[place];
        release(&at->validity, 0);
        release(&at->values, 0);
        release(&at->data, 0);
        free(at->slots);
        free(at->after);
    }
    release(&self->key, 0);
    free(self->nodes);
    free(self->names);
    free(self->powers);
    free(self);
}

static void set_name(node *at, const uint8_t *name, int32_t size) {
    at->name = name;
    at->name_size = size;
    at->is_plain_name = true;
    for (int32_t place = 0; place < size; place++) {
        at->is_plain_name = at->is_plain_name && name[place] != '"' && name[place] != '\\' && name[place] >= 0x20;
    }
#ifdef KDE_LITTLE_ENDIAN
    uint8_t bytes[16] = {0}, masks[16] = {0};
    if (size < 16) {
        if (size > 0) {
            memcpy(bytes, name, (size_t)size);
        }
        bytes[size] = '"';
        memset(masks, 0xFF, (size_t)size + 1);
        memcpy(at->words, bytes, 16);
        memcpy(at->masks, masks, 16);
    }
#endif
}

static bool set_fields(node *at) {
    uint32_t slots = 4;
    while (slots < (uint32_t)at->child_count * 2) {
        slots *= 2;
    }
    at->slots = malloc(slots * sizeof *at->slots);
    at->after = malloc(((size_t)at->child_count + 1) * sizeof *at->after);
    if (at->slots == NULL || at->after == NULL) {
        return false;
    }
    at->slot_mask = slots - 1;
    for (uint32_t slot = 0; slot < slots; slot++) {
        at->slots[slot] = -1;
    }
    for (int32_t field = 0; field < at->child_count; field++) {
        uint32_t slot = hash(at->children[field].name, at->children[field].name_size);
        while (at->slots[slot & at->slot_mask] >= 0) {
            slot++;
        }
        at->slots[slot & at->slot_mask] = field;
        at->after[field] = field;
    }
    at->after[at->child_count] = 0;
    return true;
}

static bool set_node(reader *self, int32_t place, const int32_t *parts, int64_t names_size) {
    node *at = &self->nodes[place];
    const int32_t kind = parts[0], precision = parts[2], scale = parts[3], count = parts[4], first = parts[5];
    const int32_t wanted = kind == LIST || kind == MAP ? 1 : 0;
    if (kind < 0 || kind >= KINDS || (kind == STRUCT ? count < 1 : count != wanted) || precision < 0 ||
        precision > 38 || scale < 0 || scale > 38 || parts[6] < 0 || parts[7] < 0 ||
        (int64_t)parts[6] + parts[7] > names_size || (count > 0 && (first <= place || count > self->count - first))) {
        return false; /* children come after their parent, so there is no cycle */
    }
    at->kind = kind;
    at->nullable = (parts[1] & NULLABLE) != 0;
    at->lenient = (parts[1] & LENIENT) != 0;
    at->scale = scale;
    at->child_count = count;
    at->children = count > 0 ? &self->nodes[first] : NULL;
    set_name(at, self->names + parts[6], parts[7]);
    at->limit.low = 1;
    for (int32_t digit = 0; digit < precision; digit++) {
        const wide product = multiplied(at->limit.low, 10);
        at->limit.low = product.low;
        at->limit.high = at->limit.high * 10 + product.high;
    }
    return true;
}

static void *copied(const void *bytes, size_t size) {
    void *copy = malloc(size > 0 ? size : 1);
    if (copy != NULL && size > 0) {
        memcpy(copy, bytes, size);
    }
    return copy;
}

/* Makes a reader of records. `parts` has PARTS numbers for each node: kind, flags, precision, scale, number of
   children, index of the first child, offset of its name in `names`, and the name's size. NULL if memory is short, or
   if this is not a schema. */
PUBLIC reader *kde_new(const int32_t *parts, int32_t count, const uint8_t *names, int64_t names_size,
                       const uint64_t *powers) {
    reader *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return NULL;
    }
    self->count = count;
    self->nodes = count > 0 ? calloc((size_t)count, sizeof *self->nodes) : NULL;
    self->names = copied(names, (size_t)names_size);
    self->powers = copied(powers, (size_t)POWERS * 2 * sizeof *powers);
    bool fits = self->nodes != NULL && self->names != NULL && self->powers != NULL && room(&self->key, FIRST_KEY_BYTES);
    for (int32_t place = 0; fits && place < count; place++) {
        fits = set_node(self, place, parts + (int64_t)place * PARTS, names_size);
    }
    for (int32_t place = 0; fits && place < count; place++) {
        node *at = &self->nodes[place];
        if (at->kind == STRUCT) {
            fits = set_fields(at);
        } else if (at->kind == MAP) {
            const node *entries = at->children;
            fits = entries->kind == STRUCT && entries->child_count == 2 && entries->children[0].kind == STRING;
        }
    }
    if (!fits || self->nodes[0].kind != STRUCT) {
        kde_free(self);
        return NULL;
    }
    return self;
}

static void forget(reader *self) {
    for (int32_t place = 0; place < self->count; place++) {
        node *at = &self->nodes[place];
        release(&at->validity, 0); /* whether the next block has nulls is unknown */
        release(&at->data, data_bytes(at)); /* as the offsets say */
        release(&at->values, value_bytes(at));
        at->length = 0;
    }
}

/* Reads messages: each from its offset in `data`, of `size` bytes, up to the next offset. Sets a verdict for each.
   Returns how many were taken; -1 if memory is short or the offsets are invalid. Messages that were read before and not
   taken out are forgotten. */
PUBLIC int64_t kde_read(reader *self, const uint8_t *data, int64_t size, const int32_t *offsets, int64_t count,
                        uint8_t *verdicts) {
    forget(self);
    self->limit = data + size;
    self->without_memory = false;
    self->skipped_size = 0;
    for (int64_t message = 0; message < count; message++) {
        const int64_t entries = self->nodes[0].length, begin = offsets[message], end = offsets[message + 1];
        self->unknown = false;
        const bool in_place = begin >= 0 && begin <= end && end <= size;
        const bool taken = in_place && read_message(self, data + begin, data + end);
        if (self->without_memory || !in_place) {
            forget(self);
            return -1;
        }
        if (!taken) {
            cut_back(self->nodes, entries);
        }
        verdicts[message] = (uint8_t)(!taken ? NOT_TAKEN : self->unknown ? TAKEN_WITH_UNKNOWN : TAKEN);
    }
    return self->nodes[0].length;
}

/* Sets for each node the number of entries, and the bytes of its validity (0 without nulls), values and data. */
PUBLIC void kde_sizes(const reader *self, int64_t *sizes) {
    for (int32_t place = 0; place < self->count; place++, sizes += SIZES) {
        const node *at = &self->nodes[place];
        sizes[0] = at->length;
        sizes[1] = at->validity.bytes == NULL ? 0 : (at->length + 7) / 8;
        sizes[2] = value_bytes(at);
        sizes[3] = data_bytes(at);
    }
}

static inline void copy_out(uint8_t *target, const area *place, int64_t size) {
    if (target != NULL && size > 0) {
        memcpy(target, place->bytes, (size_t)size);
    }
}

/* Copies the columns out, and forgets them. `targets` has three for each node, of the sizes from `kde_sizes`. */
PUBLIC void kde_take(reader *self, uint8_t *const *targets) {
    for (int32_t place = 0; place < self->count; place++, targets += 3) {
        const node *at = &self->nodes[place];
        copy_out(targets[0], &at->validity, (at->length + 7) / 8);
        if (has_offsets(at)) {
            if (at->values.bytes != NULL) {
                memset(at->values.bytes, 0, 4);
                copy_out(targets[1], &at->values, value_bytes(at));
            } else {
                memset(targets[1], 0, (size_t)value_bytes(at));
            }
        } else {
            copy_out(targets[1], &at->values, value_bytes(at));
        }
        copy_out(targets[2], &at->data, data_bytes(at));
    }
    forget(self);
}
