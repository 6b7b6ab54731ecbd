/* Converts a batch of Avro records to JSON texts, one after the other. Each record is taken exactly, or not at all.

   Rules:

   1. The text of a record is the one that `stage_writer/decode/binary/avro.py` makes, byte by byte. An unusual record
      (it ends early, bytes follow it, it is not UTF-8, a number beyond its type, NaN, a time beyond the year 9999, a
      key twice in a map) is not taken: its text is undone, and the caller reads it in another way.
   2. Hostile bytes are the normal case. Every step is bounded by the record's end; depth is bounded by the schema,
      which contains nothing that contains itself; the length of an array is bounded by its bytes, one for each item.
   3. No global state. A reader is used by one thread at a time. Its texts live from `kde_avro_read` to
      `kde_avro_take`. */

#include <math.h>
#include <stdio.h>

#include "columns.h"

#if defined(_WIN32)
#define PUBLIC __declspec(dllexport)
#else
#define PUBLIC __attribute__((visibility("default")))
#endif

enum avro_kind {
    A_NULL, A_BOOLEAN, A_INTEGER, A_FLOAT, A_DOUBLE, A_STRING, A_ENUM, A_BYTES, A_DECIMAL, A_DATE, A_TIME, A_RECORD,
    A_ARRAY, A_MAP, A_UNION, A_OTHER, A_TEXT /* of an enum's symbol */, A_KINDS
};
enum { A_PARTS = 8, MOST_KEYS = 64, DEEPEST_PLAN = 200 };

typedef struct avro_node avro_node;
struct avro_node {
    int32_t kind, bits, size, digits, child_count;
    bool zone;
    avro_node *children;
    const uint8_t *begin; /* as a field: the text before its value, name included; as a symbol: its text */
    int32_t begin_size;
};

typedef struct {
    avro_node *nodes; /* the first one is the record */
    int32_t count;
    uint8_t *texts;
    area out;
    int64_t length;
    text limit;
    bool without_memory;
} avro_reader;

static inline bool space(avro_reader *self, int64_t more) {
    if (room(&self->out, self->length + more)) {
        return true;
    }
    self->without_memory = true;
    return false;
}

static inline bool put(avro_reader *self, const void *bytes, int64_t size) {
    if (!space(self, size)) {
        return false;
    }
    memcpy(self->out.bytes + self->length, bytes, (size_t)size);
    self->length += size;
    return true;
}

#define PUT(text) put(self, text, (int64_t)sizeof(text) - 1)

/* Reads an integer in zigzag encoding; NULL if it does not end, or has more than 64 bits. */
static inline text read_long(text at, text end, int64_t *found) {
    uint64_t bits = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (at == end) {
            return NULL;
        }
        const uint64_t byte = *at++;
        if (shift == 63 && byte > 1) {
            return NULL;
        }
        bits |= (byte & 0x7F) << shift;
        if (byte < 0x80) {
            *found = (int64_t)(bits >> 1) ^ -(int64_t)(bits & 1);
            return at;
        }
    }
    return NULL;
}

static inline int digits_of(uint64_t number, uint8_t last[20]) {
    int at = 20;
    do {
        last[--at] = (uint8_t)('0' + number % 10);
        number /= 10;
    } while (number != 0);
    return at;
}

static inline bool put_integer(avro_reader *self, int64_t number) {
    uint8_t digits[20];
    const int first = digits_of(number < 0 ? 0 - (uint64_t)number : (uint64_t)number, digits);
    return (number >= 0 || PUT("-")) && put(self, digits + first, 20 - first);
}

/* Writes a number with the fewest digits that identify it, and an exponent only where Python writes one. */
static bool put_digits(avro_reader *self, double number, bool exponent) {
    char text[40];
    int written = 0;
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    if ((bits & 0xFFFFFFFFFFFFFu) == 0) {
        return false; /* at a power of two the neighbors are at different distances: the text may be wrong */
    }
    for (int precision = 15; precision <= 17; precision++) {
        written = snprintf(text, sizeof text, "%.*g", precision, number);
        if (written <= 0 || written >= (int)sizeof text) {
            return false;
        }
        if (precision == 17 || strtod(text, NULL) == number) {
            break;
        }
    }
    for (int place = 0; place < written; place++) { /* other locales have another decimal sign */
        const char sign = text[place];
        if (!(is_digit((uint8_t)sign) || sign == '.' || sign == '-' || (exponent && (sign == 'e' || sign == '+')))) {
            return false;
        }
    }
    return memchr(text, exponent ? 'e' : '.', (size_t)written) != NULL && put(self, text, written);
}

/* Writes a number as Python does. */
static bool put_double(avro_reader *self, double number) {
    static const double powers[] = {1e1, 1e2, 1e3, 1e4, 1e5, 1e6};
    const double size = number < 0 ? -number : number;
    if (!(size < 1e15) || (size < 1e-4 && size != 0)) {
        const bool is_plain = (size >= 1e17 && size < 1e300) || (size > 1e-290 && size < 1e-4);
        return is_plain && put_digits(self, number, true);
    }
    if (size == (double)(int64_t)size) {
        return (!signbit(number) || PUT("-")) && put_integer(self, (int64_t)size) && PUT(".0");
    }
    for (int places = 1; places <= 6; places++) {
        const double near = size * powers[places - 1];
        if (near >= 1e15) {
            break; /* beyond fifteen digits several texts stand for one number, and this may find any of them */
        }
        const double scaled = (double)(int64_t)(near + 0.5);
        if (scaled / powers[places - 1] == size) {
            uint8_t digits[20];
            int first = digits_of((uint64_t)scaled, digits);
            while (20 - first <= places) {
                digits[--first] = '0';
            }
            return (!signbit(number) || PUT("-")) && put(self, digits + first, 20 - first - places) && PUT(".") &&
                   put(self, digits + 20 - places, places);
        }
    }
    return put_digits(self, number, false);
}

static bool put_escape(avro_reader *self, uint8_t sign) {
    static const char hex[] = "0123456789abcdef";
    uint8_t text[6] = {'\\', 'u', '0', '0', 0, 0};
    switch (sign) {
    case '"': return PUT("\\\"");
    case '\\': return PUT("\\\\");
    case '\n': return PUT("\\n");
    case '\r': return PUT("\\r");
    case '\t': return PUT("\\t");
    case '\f': return PUT("\\f");
    case '\b': return PUT("\\b");
    default: break;
    }
    text[4] = (uint8_t)hex[sign >> 4];
    text[5] = (uint8_t)hex[sign & 15];
    return put(self, text, 6);
}

/* Writes the bytes of a string, quoted. */
static bool put_string(avro_reader *self, text at, text end) {
    if (!space(self, end - at + 2)) {
        return false;
    }
    self->out.bytes[self->length++] = '"';
    while (at < end) {
        text behind = plain_run(at, end, self->limit);
        if (!put(self, at, behind - at)) {
            return false;
        }
        at = behind;
        if (at < end && *at >= 0x80) {
            behind = skip_characters(at, end);
            if (behind == NULL || !put(self, at, behind - at)) {
                return false;
            }
            at = behind;
        } else if (at < end && !put_escape(self, *at++)) {
            return false;
        }
    }
    return PUT("\"");
}

/* Reads bytes that follow their length. */
static inline text read_bytes(text at, text end, int64_t *size) {
    at = read_long(at, end, size);
    return at == NULL || *size < 0 || *size > end - at ? NULL : at;
}

static bool put_base64(avro_reader *self, text at, int64_t size) {
    static const char signs[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (!space(self, (size + 2) / 3 * 4 + 2)) {
        return false;
    }
    uint8_t *out = self->out.bytes + self->length;
    *out++ = '"';
    for (; size >= 3; size -= 3, at += 3) {
        const uint32_t bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 8 | at[2];
        *out++ = (uint8_t)signs[bits >> 18];
        *out++ = (uint8_t)signs[bits >> 12 & 63];
        *out++ = (uint8_t)signs[bits >> 6 & 63];
        *out++ = (uint8_t)signs[bits & 63];
    }
    if (size > 0) {
        const uint32_t bits = (uint32_t)at[0] << 16 | (size > 1 ? (uint32_t)at[1] << 8 : 0);
        *out++ = (uint8_t)signs[bits >> 18];
        *out++ = (uint8_t)signs[bits >> 12 & 63];
        *out++ = size > 1 ? (uint8_t)signs[bits >> 6 & 63] : '=';
        *out++ = '=';
    }
    *out++ = '"';
    self->length = out - self->out.bytes;
    return true;
}

/* Writes a decimal of up to eight bytes. */
static bool put_decimal(avro_reader *self, text at, int64_t size, int32_t scale) {
    uint8_t digits[64];
    uint64_t bits;
    int first;
    if (size < 1 || size > 8 || scale > 30) {
        return false;
    }
    bits = at[0] >= 0x80 ? UINT64_MAX : 0;
    for (int64_t place = 0; place < size; place++) {
        bits = bits << 8 | at[place];
    }
    const bool negative = bits >> 63 != 0;
    memset(digits, '0', sizeof digits);
    first = 44 + digits_of(negative ? 0 - bits : bits, digits + 44);
    if (64 - first <= scale) {
        first = 64 - scale - 1;
    }
    if ((negative && !PUT("-")) || !put(self, digits + first, 64 - first - scale)) {
        return false;
    }
    return scale == 0 || (PUT(".") && put(self, digits + 64 - scale, scale));
}

static inline void put_two(uint8_t *out, int number) {
    out[0] = (uint8_t)('0' + number / 10);
    out[1] = (uint8_t)('0' + number % 10);
}

/* Days since 1970 as YYYY-MM-DD; false outside the years 1 to 9999. */
static bool write_day(uint8_t out[10], int64_t days) {
    if (days < -719162 || days > 2932896) {
        return false;
    }
    const int64_t shifted = days + 719468, era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
    const int64_t of_era = shifted - era * 146097;
    const int64_t year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    const int64_t of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    const int month_from_march = (int)((5 * of_year + 2) / 153);
    const int day = (int)(of_year - (153 * month_from_march + 2) / 5 + 1);
    const int month = month_from_march < 10 ? month_from_march + 3 : month_from_march - 9;
    const int year = (int)(year_of_era + era * 400 + (month <= 2));
    put_two(out, year / 100);
    put_two(out + 2, year % 100);
    out[4] = out[7] = '-';
    put_two(out + 5, month);
    put_two(out + 8, day);
    return true;
}

static bool put_date(avro_reader *self, int64_t days) {
    uint8_t out[12];
    out[0] = out[11] = '"';
    return write_day(out + 1, days) && put(self, out, 12);
}

static bool put_time(avro_reader *self, int64_t value, int32_t places, bool zone) {
    uint8_t out[40];
    int64_t unit = 1;
    int at = 21 + places;
    if (places < 1 || places > 9) {
        return false;
    }
    for (int32_t place = 0; place < places; place++) {
        unit *= 10;
    }
    int64_t seconds = value / unit, fraction = value % unit;
    if (fraction < 0) {
        seconds--;
        fraction += unit;
    }
    int64_t days = seconds / 86400, of_day = seconds % 86400;
    if (of_day < 0) {
        days--;
        of_day += 86400;
    }
    out[0] = '"';
    if (!write_day(out + 1, days)) {
        return false;
    }
    out[11] = 'T';
    put_two(out + 12, (int)(of_day / 3600));
    out[14] = ':';
    put_two(out + 15, (int)(of_day / 60 % 60));
    out[17] = ':';
    put_two(out + 18, (int)(of_day % 60));
    out[20] = '.';
    for (int32_t place = places; place > 0; place--) {
        out[20 + place] = (uint8_t)('0' + fraction % 10);
        fraction /= 10;
    }
    if (zone) {
        out[at++] = 'Z';
    }
    out[at++] = '"';
    return put(self, out, at);
}

static text read_avro(avro_reader *self, const avro_node *node, text at, text end);

/* Reads the number of items in the next block of an array or a map; 0 is the end. */
static text read_block(text at, text end, int64_t *items) {
    int64_t bytes;
    at = read_long(at, end, items);
    if (at != NULL && *items < 0) {
        *items = *items == INT64_MIN ? INT64_MAX : -*items;
        at = read_long(at, end, &bytes);
    }
    return at == NULL || *items > end - at ? NULL : at;
}

static text read_array(avro_reader *self, const avro_node *node, text at, text end) {
    bool is_first = true;
    int64_t items;
    if (!PUT("[")) {
        return NULL;
    }
    for (;;) {
        at = read_block(at, end, &items);
        if (at == NULL || items == 0) {
            return at == NULL || !PUT("]") ? NULL : at;
        }
        for (; items > 0; items--, is_first = false) {
            if (!is_first && !PUT(",")) {
                return NULL;
            }
            at = read_avro(self, node->children, at, end);
            if (at == NULL) {
                return NULL;
            }
        }
    }
}

static text read_map(avro_reader *self, const avro_node *node, text at, text end) {
    text keys[MOST_KEYS];
    int64_t sizes[MOST_KEYS], items;
    int count = 0;
    if (!PUT("{")) {
        return NULL;
    }
    for (;;) {
        at = read_block(at, end, &items);
        if (at == NULL || items == 0) {
            return at == NULL || !PUT("}") ? NULL : at;
        }
        for (; items > 0; items--, count++) {
            if (count == MOST_KEYS || (at = read_bytes(at, end, &sizes[count])) == NULL) {
                return NULL;
            }
            keys[count] = at;
            at += sizes[count];
            for (int other = 0; other < count; other++) {
                if (sizes[other] == sizes[count] && memcmp(keys[other], keys[count], (size_t)sizes[count]) == 0) {
                    return NULL;
                }
            }
            if ((count > 0 && !PUT(",")) || !put_string(self, keys[count], at) || !PUT(":")) {
                return NULL;
            }
            at = read_avro(self, node->children, at, end);
            if (at == NULL) {
                return NULL;
            }
        }
    }
}

static text read_fields(avro_reader *self, const avro_node *node, text at, text end) {
    if (node->child_count == 0 && !PUT("{")) {
        return NULL;
    }
    for (int32_t place = 0; place < node->child_count; place++) {
        const avro_node *field = &node->children[place];
        if (!put(self, field->begin, field->begin_size)) {
            return NULL;
        }
        at = read_avro(self, field, at, end);
        if (at == NULL) {
            return NULL;
        }
    }
    return PUT("}") ? at : NULL;
}

static text read_sized(avro_reader *self, const avro_node *node, text at, text end) {
    int64_t size = node->size;
    at = size < 0 ? read_bytes(at, end, &size) : size > end - at ? NULL : at;
    if (at == NULL) {
        return NULL;
    }
    switch (node->kind) {
    case A_STRING: return put_string(self, at, at + size) ? at + size : NULL;
    case A_DECIMAL: return put_decimal(self, at, size, node->digits) ? at + size : NULL;
    default: return put_base64(self, at, size) ? at + size : NULL;
    }
}

static text read_whole(avro_reader *self, const avro_node *node, text at, text end) {
    int64_t value;
    at = read_long(at, end, &value);
    if (at == NULL || (node->bits == 32 && (value < INT32_MIN || value > INT32_MAX))) {
        return NULL;
    }
    switch (node->kind) {
    case A_DATE: return put_date(self, value) ? at : NULL;
    case A_TIME: return put_time(self, value, node->digits, node->zone) ? at : NULL;
    default: return put_integer(self, value) ? at : NULL;
    }
}

/* Reads a union's member, or an enum's symbol. */
static text read_choice(avro_reader *self, const avro_node *node, text at, text end) {
    int64_t place;
    at = read_long(at, end, &place);
    if (at == NULL || place < 0 || place >= node->child_count) {
        return NULL;
    }
    return read_avro(self, &node->children[place], at, end);
}

static text read_avro(avro_reader *self, const avro_node *node, text at, text end) {
    float single;
    double number;
    switch (node->kind) {
    case A_NULL: return PUT("null") ? at : NULL;
    case A_BOOLEAN:
        if (at == end || *at > 1) {
            return NULL;
        }
        return (*at == 1 ? PUT("true") : PUT("false")) ? at + 1 : NULL;
    case A_INTEGER: case A_DATE: case A_TIME: return read_whole(self, node, at, end);
    case A_FLOAT:
        if (end - at < 4) {
            return NULL;
        }
        const uint32_t half = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        memcpy(&single, &half, sizeof single);
        return put_double(self, (double)single) ? at + 4 : NULL;
    case A_DOUBLE:
        if (end - at < 8) {
            return NULL;
        }
        uint64_t bits = 0;
        for (int place = 7; place >= 0; place--) {
            bits = bits << 8 | at[place];
        }
        memcpy(&number, &bits, sizeof number);
        return put_double(self, number) ? at + 8 : NULL;
    case A_STRING: case A_BYTES: case A_DECIMAL: return read_sized(self, node, at, end);
    case A_ENUM: case A_UNION: return read_choice(self, node, at, end);
    case A_RECORD: return read_fields(self, node, at, end);
    case A_ARRAY: return read_array(self, node, at, end);
    case A_MAP: return read_map(self, node, at, end);
    case A_TEXT: return put(self, node->begin, node->begin_size) ? at : NULL;
    default: return NULL;
    }
}

PUBLIC void kde_avro_free(avro_reader *self) {
    if (self != NULL) {
        free(self->nodes);
        free(self->texts);
        free(self->out.bytes);
        free(self);
    }
}

static bool set_avro(avro_reader *self, int32_t place, const int32_t *parts, int64_t texts_size, int32_t *depths) {
    avro_node *at = &self->nodes[place];
    const int32_t kind = parts[0], count = parts[4] >> 1, first = parts[5];
    const bool needs_one = kind == A_ARRAY || kind == A_MAP;
    if (kind < 0 || kind >= A_KINDS || parts[4] < 0 || parts[6] < 0 || parts[7] < 0 ||
        (int64_t)parts[6] + parts[7] > texts_size || parts[3] < 0 || (needs_one && count != 1) ||
        (count > 0 && (first <= place || count > self->count - first)) || depths[place] > DEEPEST_PLAN) {
        return false; /* children come after their parent, so there is no cycle */
    }
    for (int32_t child = 0; child < count; child++) {
        depths[first + child] = depths[place] + 1;
    }
    at->kind = kind;
    at->bits = parts[1];
    at->size = parts[2];
    at->digits = parts[3];
    at->zone = (parts[4] & 1) != 0;
    at->child_count = count;
    at->children = count > 0 ? &self->nodes[first] : NULL;
    at->begin = self->texts + parts[6];
    at->begin_size = parts[7];
    return true;
}

/* Makes a reader of records. `parts` has A_PARTS numbers for each node: kind, bits, size, digits, twice the number of
   children (plus one for a time with a zone), the index of the first child, the offset of its text in `texts`, and the
   text's size. NULL if memory is short, or if this is not a plan. */
PUBLIC avro_reader *kde_avro_new(const int32_t *parts, int32_t count, const uint8_t *texts, int64_t texts_size) {
    avro_reader *self = calloc(1, sizeof *self);
    int32_t *depths = count > 0 ? calloc((size_t)count, sizeof *depths) : NULL;
    bool fits = self != NULL && depths != NULL;
    if (fits) {
        self->count = count;
        self->nodes = calloc((size_t)count, sizeof *self->nodes);
        self->texts = malloc(texts_size > 0 ? (size_t)texts_size : 1);
        fits = self->nodes != NULL && self->texts != NULL;
    }
    if (fits && texts_size > 0) {
        memcpy(self->texts, texts, (size_t)texts_size);
    }
    for (int32_t place = 0; fits && place < count; place++) {
        fits = set_avro(self, place, parts + (int64_t)place * A_PARTS, texts_size, depths);
    }
    free(depths);
    if (!fits) {
        kde_avro_free(self);
        return NULL;
    }
    return self;
}

/* Reads records: each from its offset in `data`, of `size` bytes, up to the next offset. Sets a verdict for each, and
   for each record taken the end of its text (`ends` has room for all; texts follow one another). Returns the bytes of
   all texts; -1 if memory is short or the offsets are invalid. */
PUBLIC int64_t kde_avro_read(avro_reader *self, const uint8_t *data, int64_t size, const int64_t *offsets,
                             int64_t count, uint8_t *verdicts, int64_t *ends) {
    self->length = 0;
    self->limit = data + size;
    self->without_memory = false;
    for (int64_t message = 0; message < count; message++) {
        const int64_t before = self->length, begin = offsets[message], end = offsets[message + 1];
        if (begin < 0 || begin > end || end > size) {
            return -1;
        }
        const bool taken = read_avro(self, self->nodes, data + begin, data + end) == data + end;
        if (self->without_memory) {
            return -1;
        }
        if (taken) {
            *ends++ = self->length;
        } else {
            self->length = before;
        }
        verdicts[message] = taken;
    }
    return self->length;
}

/* Copies the texts out, and forgets them. */
PUBLIC void kde_avro_take(avro_reader *self, uint8_t *target) {
    if (self->length > 0) {
        memcpy(target, self->out.bytes, (size_t)self->length);
    }
    release(&self->out, self->length);
    self->length = 0;
}
