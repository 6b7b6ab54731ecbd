/* Growing columns: the Arrow buffers for one node of a schema and the nodes below it.

   Rules:

   1. A node has as many entries as its parent needs: a part of a struct has one for each of the struct's entries. So
      what an untaken message has added is undone from the top, by lengths alone (`cut_back`).
   2. There are no validity bits before the first null. Bits are set or cleared when an entry is added, so those that an
      undone message has left do not matter.
   3. Every growth is checked. Offsets have 32 bits: beyond 2^31 - 1 nothing grows, and reading fails as it does if
      memory is short. */

#ifndef KDE_COLUMNS_H
#define KDE_COLUMNS_H

#include <stdlib.h>

#include "values.h"

enum kind {
    BOOLEAN, BYTE, SHORT, INTEGER, LONG, FLOAT, DOUBLE, STRING, JSON, BASE64, HEX, DATE, TIMESTAMP, TIMESTAMP_NTZ,
    DECIMAL, EPOCH, STRUCT, LIST, MAP, KINDS
};

typedef struct {
    uint8_t *bytes;
    int64_t capacity, expected; /* in bytes; and how many the last block needed */
} area;

typedef struct node node;
struct node {
    int32_t kind, child_count, scale;
    bool nullable, lenient;
    node *children;       /* one after the other */
    wide limit;           /* of a decimal's units */
    int64_t length;
    area validity, values, data; /* values: fixed width, bits, or offsets into data or children */
    /* As a field: its name in UTF-8, and the first sixteen bytes of the name and its closing quote, as masked words. */
    const uint8_t *name;
    int32_t name_size;
    bool is_plain_name;
    uint64_t words[2], masks[2];
    /* As a struct: its fields by hash, and which one followed each the last time; the first entry stands for none. */
    int32_t *slots, *after;
    uint32_t slot_mask;
};

static inline bool has_offsets(const node *at) {
    return (at->kind >= STRING && at->kind <= HEX) || at->kind == LIST || at->kind == MAP;
}

static inline int32_t width(int32_t kind) {
    switch (kind) {
    case BYTE: return 1;
    case SHORT: return 2;
    case INTEGER: case FLOAT: case DATE: return 4;
    case LONG: case DOUBLE: case TIMESTAMP: case TIMESTAMP_NTZ: case EPOCH: return 8;
    case DECIMAL: return 16;
    default: return 0;
    }
}

/* Makes room for `needed` bytes. */
static bool grow(area *place, int64_t needed) {
    int64_t capacity = place->capacity * 2;
    uint8_t *bytes;
    if (capacity < place->expected + place->expected / 8) {
        capacity = place->expected + place->expected / 8;
    }
    if (capacity < needed) {
        capacity = needed;
    }
    capacity = (capacity + 1023) & ~(int64_t)1023;
#ifdef KDE_EXACT_ROOM /* so that a sanitizer detects access to more than was requested */
    capacity = needed;
#endif
    if ((uint64_t)capacity > SIZE_MAX / 2) {
        return false;
    }
    bytes = realloc(place->bytes, (size_t)capacity);
    if (bytes == NULL) {
        return false;
    }
    place->bytes = bytes;
    place->capacity = capacity;
    return true;
}

static inline bool room(area *place, int64_t needed) { return needed <= place->capacity || grow(place, needed); }

/* Appends bytes after the first `size` ones. */
static inline bool add_bytes(area *place, int64_t *size, const uint8_t *from, int64_t count) {
    if (count > INT32_MAX - *size || !room(place, *size + count)) {
        return false;
    }
    if (count > 0) {
        memcpy(place->bytes + *size, from, (size_t)count);
        *size += count;
    }
    return true;
}

static inline int32_t offset_at(const node *at, int64_t entry) {
    int32_t offset;
    if (entry == 0) {
        return 0; /* before the first entry there may be no buffer */
    }
    memcpy(&offset, at->values.bytes + entry * 4, sizeof offset);
    return offset;
}

/* Sets the end of the entry that is being added. */
static inline bool add_offset(node *at, int64_t offset) {
    const int32_t narrow = (int32_t)offset;
    if (offset > INT32_MAX || !room(&at->values, (at->length + 2) * 4)) {
        return false;
    }
    memcpy(at->values.bytes + (at->length + 1) * 4, &narrow, sizeof narrow);
    return true;
}

static inline void put_bit(uint8_t *bits, int64_t place, bool value) {
    const uint8_t bit = (uint8_t)(1 << (place & 7));
    bits[place >> 3] = (uint8_t)((bits[place >> 3] & ~bit) | (value ? bit : 0));
}

static bool begin_validity(node *at) {
    const int64_t bytes = (at->length >> 3) + 1;
    if (!room(&at->validity, bytes > at->values.capacity / 8 ? bytes : at->values.capacity / 8)) {
        return false;
    }
    memset(at->validity.bytes, 0xFF, (size_t)bytes);
    return true;
}

/* Ends an entry whose value is in place. */
static inline bool end_entry(node *at, bool valid) {
    if (!valid && at->validity.bytes == NULL && !begin_validity(at)) {
        return false;
    }
    if (at->validity.bytes != NULL) {
        if (!room(&at->validity, (at->length >> 3) + 1)) {
            return false;
        }
        put_bit(at->validity.bytes, at->length, valid);
    }
    at->length++;
    return true;
}

static inline bool add_fixed(node *at, const void *value, int32_t size) {
    if (!room(&at->values, (at->length + 1) * size)) {
        return false;
    }
    memcpy(at->values.bytes + at->length * size, value, (size_t)size);
    return end_entry(at, true);
}

static inline bool add_bit(node *at, bool value) {
    if (!room(&at->values, (at->length >> 3) + 1)) {
        return false;
    }
    put_bit(at->values.bytes, at->length, value);
    return end_entry(at, true);
}

static bool add_null(node *at) {
    static const uint8_t zeros[16];
    if (has_offsets(at)) {
        if (!add_offset(at, offset_at(at, at->length))) {
            return false;
        }
    } else if (at->kind == STRUCT) {
        for (int32_t child = 0; child < at->child_count; child++) {
            if (!add_null(&at->children[child])) {
                return false;
            }
        }
    } else if (at->kind == BOOLEAN) {
        if (!room(&at->values, (at->length >> 3) + 1)) {
            return false;
        }
        put_bit(at->values.bytes, at->length, false);
    } else {
        const int32_t size = width(at->kind);
        if (!room(&at->values, (at->length + 1) * size)) {
            return false;
        }
        memcpy(at->values.bytes + at->length * size, zeros, (size_t)size);
    }
    return end_entry(at, false);
}

/* Rule 1. */
static void cut_back(node *at, int64_t length) {
    if (at->kind == STRUCT) {
        for (int32_t child = 0; child < at->child_count; child++) {
            cut_back(&at->children[child], length);
        }
    } else if (at->kind == LIST || at->kind == MAP) {
        cut_back(at->children, offset_at(at, length));
    }
    at->length = length;
}

static inline int64_t value_bytes(const node *at) {
    if (has_offsets(at)) {
        return (at->length + 1) * 4;
    }
    return at->kind == BOOLEAN ? (at->length + 7) / 8 : at->length * width(at->kind);
}

static inline int64_t data_bytes(const node *at) {
    return at->kind >= STRING && at->kind <= HEX ? offset_at(at, at->length) : 0;
}

static inline void release(area *place, int64_t used) {
    free(place->bytes);
    place->bytes = NULL;
    place->capacity = 0;
    place->expected = used;
}

#endif
