/* Bytes of JSON text: strings, UTF-8, escapes, numbers. Nothing here allocates.

   Rules:

   1. A function takes its start and the message's end, and returns where it stopped: NULL if the text is not what was
      expected. No byte at `end` or after it is read, except by `plain_run`, which may load bytes up to `limit`, the end
      of the buffer that contains the message.
   2. Everything that is accepted here is JSON by RFC 8259 and UTF-8 by RFC 3629, without unpaired surrogates. */

#ifndef KDE_TEXT_H
#define KDE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__) && !defined(KDE_PORTABLE)
#include <emmintrin.h>
#define KDE_SSE2 1
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define KDE_LITTLE_ENDIAN 1
#endif

typedef const uint8_t *text;

static inline bool is_digit(uint8_t sign) { return (uint8_t)(sign - '0') < 10; }

static inline text skip_space(text at, text end) {
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) {
        at++;
    }
    return at;
}

#ifdef KDE_LITTLE_ENDIAN
static inline uint64_t load_word(text at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}
#endif

/* The first byte that is a quote, a backslash, below 0x20 or above 0x7F; or the end. */
static inline text plain_run(text at, text end, text limit) {
#if defined(KDE_SSE2)
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), space = _mm_set1_epi8(0x20);
    while (limit - at >= 16) {
        __m128i signs = _mm_loadu_si128((const __m128i *)(const void *)at);
        __m128i found = _mm_or_si128(_mm_cmpeq_epi8(signs, quote), _mm_cmpeq_epi8(signs, backslash));
        /* As signed bytes, those above 0x7F are below 0x20 as well. */
        int mask = _mm_movemask_epi8(_mm_or_si128(found, _mm_cmplt_epi8(signs, space)));
        if (mask != 0) {
            at += __builtin_ctz((unsigned)mask);
            return at < end ? at : end;
        }
        at += 16;
        if (at >= end) {
            return end;
        }
    }
#elif defined(KDE_LITTLE_ENDIAN)
    const uint64_t ones = UINT64_C(0x0101010101010101), highs = UINT64_C(0x8080808080808080);
    while (limit - at >= 8) {
        uint64_t word = load_word(at), quotes = word ^ (ones * '"'), backslashes = word ^ (ones * '\\');
        uint64_t found = ((quotes - ones) & ~quotes) | ((backslashes - ones) & ~backslashes);
        /* A borrow can only come from a lower byte that was found, so the lowest one found is right. */
        found = (found | ((word - ones * 0x20) & ~word) | word) & highs;
        if (found != 0) {
            at += __builtin_ctzll(found) >> 3;
            return at < end ? at : end;
        }
        at += 8;
        if (at >= end) {
            return end;
        }
    }
#else
    (void)limit;
#endif
    while (at < end && *at != '"' && *at != '\\' && *at >= 0x20 && *at < 0x80) {
        at++;
    }
    return at;
}

static inline bool is_continuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

/* Skips a run of non-ASCII characters; NULL if they are not UTF-8. */
static inline text skip_characters(text at, text end) {
    while (at < end && *at >= 0x80) {
        uint8_t first = *at;
        ptrdiff_t left = end - at;
        if (first >= 0xC2 && first <= 0xDF) {
            if (left < 2 || !is_continuation(at[1])) {
                return NULL;
            }
            at += 2;
        } else if ((first & 0xF0) == 0xE0) {
            if (left < 3 || !is_continuation(at[1]) || !is_continuation(at[2]) || (first == 0xE0 && at[1] < 0xA0) ||
                (first == 0xED && at[1] > 0x9F)) {
                return NULL;
            }
            at += 3;
        } else if (first >= 0xF0 && first <= 0xF4) {
            if (left < 4 || !is_continuation(at[1]) || !is_continuation(at[2]) || !is_continuation(at[3]) ||
                (first == 0xF0 && at[1] < 0x90) || (first == 0xF4 && at[1] > 0x8F)) {
                return NULL;
            }
            at += 4;
        } else {
            return NULL;
        }
    }
    return at;
}

static inline bool hex_unit(text at, uint32_t *unit) {
    uint32_t value = 0;
    for (int place = 0; place < 4; place++) {
        uint8_t sign = at[place];
        uint8_t letter = (uint8_t)(sign | 0x20);
        if (is_digit(sign)) {
            value = value << 4 | (uint32_t)(sign - '0');
        } else if (letter >= 'a' && letter <= 'f') {
            value = value << 4 | (uint32_t)(letter - 'a' + 10);
        } else {
            return false;
        }
    }
    *unit = value;
    return true;
}

static inline int encode(uint32_t character, uint8_t out[4]) {
    if (character < 0x80) {
        out[0] = (uint8_t)character;
        return 1;
    }
    if (character < 0x800) {
        out[0] = (uint8_t)(0xC0 | character >> 6);
        out[1] = (uint8_t)(0x80 | (character & 0x3F));
        return 2;
    }
    if (character < 0x10000) {
        out[0] = (uint8_t)(0xE0 | character >> 12);
        out[1] = (uint8_t)(0x80 | (character >> 6 & 0x3F));
        out[2] = (uint8_t)(0x80 | (character & 0x3F));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | character >> 18);
    out[1] = (uint8_t)(0x80 | (character >> 12 & 0x3F));
    out[2] = (uint8_t)(0x80 | (character >> 6 & 0x3F));
    out[3] = (uint8_t)(0x80 | (character & 0x3F));
    return 4;
}

/* Skips the escape that begins at a backslash, and writes its character in UTF-8 to `out`. */
static inline text unescape(text at, text end, uint8_t out[4], int *size) {
    uint32_t unit, low;
    if (end - at < 2) {
        return NULL;
    }
    *size = 1;
    switch (at[1]) {
    case '"': case '\\': case '/': out[0] = at[1]; return at + 2;
    case 'b': out[0] = '\b'; return at + 2;
    case 'f': out[0] = '\f'; return at + 2;
    case 'n': out[0] = '\n'; return at + 2;
    case 'r': out[0] = '\r'; return at + 2;
    case 't': out[0] = '\t'; return at + 2;
    case 'u': break;
    default: return NULL;
    }
    if (end - at < 6 || !hex_unit(at + 2, &unit)) {
        return NULL;
    }
    at += 6;
    if (unit >= 0xD800 && unit < 0xE000) {
        if (unit >= 0xDC00 || end - at < 6 || at[0] != '\\' || at[1] != 'u' || !hex_unit(at + 2, &low) ||
            low < 0xDC00 || low >= 0xE000) {
            return NULL;
        }
        unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
        at += 6;
    }
    *size = encode(unit, out);
    return at;
}

/* Skips a string whose opening quote was read. */
static inline text skip_string(text at, text end, text limit) {
    uint8_t character[4];
    int size;
    for (;;) {
        at = plain_run(at, end, limit);
        if (at == end) {
            return NULL;
        }
        if (*at == '"') {
            return at + 1;
        }
        if (*at == '\\') {
            at = unescape(at, end, character, &size);
        } else if (*at >= 0x80) {
            at = skip_characters(at, end);
        } else {
            return NULL; /* a control character */
        }
        if (at == NULL) {
            return NULL;
        }
    }
}

typedef struct {
    uint64_t digits;  /* the value is digits * 10^exponent, unless it is too long */
    int32_t exponent;
    bool negative, too_long, has_exponent;
} number;

enum { MOST_DIGITS = 19, MOST_EXPONENT = 100000 };

static inline text read_digits(text at, text end, number *found, int *count, int32_t each) {
    while (at < end && is_digit(*at)) {
        if (*count < MOST_DIGITS) {
            found->digits = found->digits * 10 + (uint64_t)(*at - '0');
            *count += found->digits != 0;
            found->exponent += each;
        } else {
            found->too_long = true;
        }
        at++;
    }
    return at;
}

static inline text read_number(text at, text end, number *found) {
    int count = 0;
    text begin;
    found->digits = 0;
    found->exponent = 0;
    found->too_long = found->has_exponent = false;
    found->negative = at < end && *at == '-';
    at += found->negative;
    if (at < end && *at == '0') {
        at++;
    } else {
        begin = at;
        at = read_digits(at, end, found, &count, 0);
        if (at == begin) {
            return NULL;
        }
    }
    if (at < end && *at == '.') {
        begin = ++at;
        at = read_digits(at, end, found, &count, -1);
        if (at == begin) {
            return NULL;
        }
    }
    if (at < end && (*at | 0x20) == 'e') {
        int32_t exponent = 0;
        bool below = false;
        found->has_exponent = true;
        at++;
        if (at < end && (*at == '+' || *at == '-')) {
            below = *at == '-';
            at++;
        }
        begin = at;
        while (at < end && is_digit(*at)) {
            if (exponent < MOST_EXPONENT) {
                exponent = exponent * 10 + (*at - '0');
            } else {
                found->too_long = true;
            }
            at++;
        }
        if (at == begin) {
            return NULL;
        }
        /* There are fewer than 2^31 decimals, one for each byte of a message at most: a sum beyond 32 bits is cut off,
           far from zero. */
        int64_t sum = (int64_t)found->exponent + (below ? -(int64_t)exponent : (int64_t)exponent);
        found->exponent = (int32_t)(sum < -INT32_MAX ? -INT32_MAX : sum);
    }
    return at;
}

/* A number of more than MOST_DIGITS digits: (first.digits * 10^more_count + more) * 10^first.exponent, or slightly more
   if it is longer still. */
typedef struct {
    number first;
    uint64_t more;
    int32_t more_count;
    bool is_longer;
} long_number;

/* Reads a number again that `read_number` has accepted; skips a quote before it. */
static long_number read_long_number(text at, text end) {
    long_number found = {0};
    int32_t each = 0, exponent = 0;
    at += *at == '"';
    found.first.negative = *at == '-';
    for (at += found.first.negative; at < end && (is_digit(*at) || *at == '.'); at++) {
        if (*at == '.') {
            each = -1;
        } else if (found.first.digits < UINT64_C(1000000000000000000)) {
            found.first.digits = found.first.digits * 10 + (uint64_t)(*at - '0');
            found.first.exponent += each;
        } else if (found.more_count < MOST_DIGITS) {
            found.more = found.more * 10 + (uint64_t)(*at - '0');
            found.more_count++;
            found.first.exponent += each;
        } else {
            found.is_longer = true;
            found.first.exponent += each + 1;
        }
    }
    if (at < end && (*at | 0x20) == 'e') {
        at++;
        const bool below = *at == '-';
        for (at += *at == '-' || *at == '+'; at < end && is_digit(*at); at++) {
            if (exponent < MOST_EXPONENT) {
                exponent = exponent * 10 + (*at - '0');
            } else {
                found.first.too_long = true; /* too long to be counted */
            }
        }
        int64_t sum = (int64_t)found.first.exponent + (below ? -(int64_t)exponent : (int64_t)exponent);
        found.first.exponent = (int32_t)(sum < -INT32_MAX ? -INT32_MAX : sum);
    }
    return found;
}

static inline text skip_word(text at, text end, const char *word, ptrdiff_t size) {
    return end - at >= size && memcmp(at, word, (size_t)size) == 0 ? at + size : NULL;
}

enum { DEEPEST = 1024 };

/* Skips any value, from its first character. */
static text skip_value(text at, text end, text limit) {
    uint64_t objects[DEEPEST / 64];
    int depth = 0;
    number ignored;
    for (;;) {
        bool opened = false;
        if (at == end) {
            return NULL;
        }
        switch (*at) {
        case '{': case '[':
            if (depth == DEEPEST) {
                return NULL;
            }
            if ((depth & 63) == 0) {
                objects[depth >> 6] = 0;
            }
            objects[depth >> 6] &= ~(UINT64_C(1) << (depth & 63));
            objects[depth >> 6] |= (uint64_t)(*at == '{') << (depth & 63);
            depth++;
            at++;
            opened = true;
            break;
        case '"': at = skip_string(at + 1, end, limit); break;
        case 't': at = skip_word(at, end, "true", 4); break;
        case 'f': at = skip_word(at, end, "false", 5); break;
        case 'n': at = skip_word(at, end, "null", 4); break;
        default: at = read_number(at, end, &ignored); break;
        }
        if (at == NULL) {
            return NULL;
        }
        for (;;) { /* after a value, or after an opening bracket */
            if (depth == 0) {
                return at;
            }
            bool in_object = (objects[(depth - 1) >> 6] >> ((depth - 1) & 63) & 1) != 0;
            at = skip_space(at, end);
            if (at == end) {
                return NULL;
            }
            if (*at == (in_object ? '}' : ']')) {
                at++;
                depth--;
                opened = false;
                continue;
            }
            if (!opened) {
                if (*at != ',') {
                    return NULL;
                }
                at = skip_space(at + 1, end);
            }
            if (in_object) {
                if (at == end || *at != '"') {
                    return NULL;
                }
                at = skip_string(at + 1, end, limit);
                if (at == NULL) {
                    return NULL;
                }
                at = skip_space(at, end);
                if (at == end || *at != ':') {
                    return NULL;
                }
                at = skip_space(at + 1, end);
            }
            break;
        }
    }
}

#endif
