/* From JSON text to the values of Delta's types, exactly or not at all.

   Each function accepts what `stage_writer.decode.strict` accepts, or less, and returns the same value. */

#ifndef KDE_VALUES_H
#define KDE_VALUES_H

#include <float.h>

#include "text.h"

typedef struct {
    uint64_t high, low;
} wide;

static inline wide multiplied(uint64_t left, uint64_t right) {
    wide product;
#ifdef __SIZEOF_INT128__
    unsigned __int128 both = (unsigned __int128)left * right;
    product.high = (uint64_t)(both >> 64);
    product.low = (uint64_t)both;
#else
    uint64_t left_low = (uint32_t)left, left_high = left >> 32, right_low = (uint32_t)right, right_high = right >> 32;
    uint64_t lows = left_low * right_low, cross = left_high * right_low + (lows >> 32);
    uint64_t middle = left_low * right_high + (uint32_t)cross;
    product.high = left_high * right_high + (cross >> 32) + (middle >> 32);
    product.low = middle << 32 | (uint32_t)lows;
#endif
    return product;
}

static const uint64_t TENS[20] = {
    UINT64_C(1), UINT64_C(10), UINT64_C(100), UINT64_C(1000), UINT64_C(10000), UINT64_C(100000), UINT64_C(1000000),
    UINT64_C(10000000), UINT64_C(100000000), UINT64_C(1000000000), UINT64_C(10000000000), UINT64_C(100000000000),
    UINT64_C(1000000000000), UINT64_C(10000000000000), UINT64_C(100000000000000), UINT64_C(1000000000000000),
    UINT64_C(10000000000000000), UINT64_C(100000000000000000), UINT64_C(1000000000000000000),
    UINT64_C(10000000000000000000)};

static inline bool to_integer(const number *found, int64_t *value) {
    if (found->too_long || found->exponent != 0 || found->has_exponent ||
        found->digits > (uint64_t)INT64_MAX + found->negative) {
        return false;
    }
    *value = found->negative ? (int64_t)(0 - found->digits) : (int64_t)found->digits;
    return true;
}

/* Like the function above, for a whole number that may be written with a point or an exponent. */
static inline bool to_whole(const number *found, int64_t *value) {
    number whole = *found;
    if (whole.digits == 0) {
        whole.exponent = 0;
    }
    while (whole.exponent < 0 && whole.digits % 10 == 0) {
        whole.digits /= 10;
        whole.exponent++;
    }
    while (whole.exponent > 0 && whole.digits <= UINT64_MAX / 10) {
        whole.digits *= 10;
        whole.exponent--;
    }
    whole.has_exponent = false;
    return to_integer(&whole, value);
}

/* Five to the power of each exponent from LEAST_POWER to MOST_POWER: the upper 128 bits, for `to_double`. The library's
   caller computes them exactly, with integers of any size. */
enum { LEAST_POWER = -342, MOST_POWER = 308, POWERS = MOST_POWER - LEAST_POWER + 1 };

/* The nearest double, half to even: Clinger's fast path, and the algorithm of Eisel and Lemire ("Number Parsing at a
   Gigabyte per Second", 2021). False where these cannot decide, for subnormal doubles and for numbers that are too
   large. */
static inline bool to_double(const number *found, const uint64_t *powers, double *value) {
    static const double exact[23] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                     1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const int32_t exponent = found->exponent;
    if (found->too_long) {
        return false;
    }
    if (found->digits == 0) {
        *value = found->negative ? -0.0 : 0.0;
        return true;
    }
#if FLT_EVAL_METHOD == 0
    if (found->digits <= UINT64_C(1) << 53 && exponent >= -22 && exponent <= 22) {
        double magnitude = (double)found->digits;
        magnitude = exponent < 0 ? magnitude / exact[-exponent] : magnitude * exact[exponent];
        *value = found->negative ? -magnitude : magnitude;
        return true;
    }
#endif
    if (exponent < LEAST_POWER || exponent > MOST_POWER) {
        return false;
    }
    const int zeros = __builtin_clzll(found->digits);
    const uint64_t digits = found->digits << zeros, *power = powers + 2 * (exponent - LEAST_POWER);
    wide product = multiplied(digits, power[0]);
    const uint64_t uncertain = UINT64_MAX >> 55;
    if ((product.high & uncertain) == uncertain) {
        uint64_t more = multiplied(digits, power[1]).high;
        product.low += more;
        product.high += product.low < more;
    }
    if (product.low == UINT64_MAX && (exponent < -27 || exponent > 55)) {
        return false;
    }
    const int upper = (int)(product.high >> 63);
    uint64_t mantissa = product.high >> (upper + 9);
    /* floor(log2(10^exponent)); the exponent may be negative, so no shift. */
    const int32_t scaled = (152170 + 65536) * exponent;
    const int32_t log2 = scaled >= 0 ? scaled / 65536 : -((-scaled + 65535) / 65536);
    int32_t binary = log2 + 63 + upper - zeros + 1023;
    if (binary <= 0) {
        return false;
    }
    if (product.low <= 1 && exponent >= -4 && exponent <= 23 && (mantissa & 3) == 1 &&
        mantissa << (upper + 9) == product.high) {
        mantissa &= ~UINT64_C(1); /* exactly halfway: to even */
    }
    mantissa += mantissa & 1;
    mantissa >>= 1;
    if (mantissa >= UINT64_C(1) << 53) {
        mantissa = UINT64_C(1) << 52;
        binary++;
    }
    if (binary >= 0x7FF) {
        return false;
    }
    const uint64_t bits = (mantissa & ~(UINT64_C(1) << 52)) | (uint64_t)binary << 52 | (uint64_t)found->negative << 63;
    memcpy(value, &bits, sizeof bits);
    return true;
}

/* Like `to_double`, for a long number. It lies between its first digits and the next number of as many digits; if both
   have the same nearest double, that is the result. */
static __attribute__((noinline)) bool long_to_double(text at, text end, const uint64_t *powers, double *value) {
    const long_number found = read_long_number(at, end);
    number below = found.first, above;
    double upper;
    below.exponent += found.more_count;
    above = below;
    above.digits++;
    return to_double(&below, powers, value) && to_double(&above, powers, &upper) && *value == upper;
}

static inline bool ten_times(wide *value) {
    const wide low = multiplied(value->low, 10), high = multiplied(value->high, 10);
    value->low = low.low;
    value->high = high.low + low.high;
    return high.high == 0 && value->high >= low.high;
}

/* Divides by ten, rounding down; returns the last digit. */
static inline uint64_t divide_by_ten(wide *value) {
    const uint64_t upper = (value->high % 10) << 32 | value->low >> 32;
    const uint64_t lower = (upper % 10) << 32 | (uint32_t)value->low;
    value->high /= 10;
    value->low = (upper / 10) << 32 | lower / 10;
    return lower % 10;
}

/* A value of 10^-decimals in units of 10^-scale; it must stay below the limit. */
static __attribute__((noinline)) bool to_scale(wide *units, int32_t decimals, int32_t scale, wide limit) {
    if (units->high == 0 && units->low == 0) {
        return true;
    }
    for (; decimals > scale; decimals--) { /* the value is not zero, so this ends at its last digit that is not zero */
        if (divide_by_ten(units) != 0) {
            return false;
        }
    }
    for (; decimals < scale; decimals++) {
        if (!ten_times(units)) {
            return false;
        }
    }
    return units->high < limit.high || (units->high == limit.high && units->low < limit.low);
}

/* The number in units of 10^-scale, without its sign. */
static inline bool to_decimal(const number *found, int32_t scale, wide limit, wide *units) {
    const int32_t decimals = -found->exponent;
    if (decimals <= scale && scale - decimals <= MOST_DIGITS) {
        *units = multiplied(found->digits, TENS[scale - decimals]);
        return units->high < limit.high || (units->high == limit.high && units->low < limit.low);
    }
    units->high = 0;
    units->low = found->digits;
    return to_scale(units, decimals, scale, limit);
}

static __attribute__((noinline)) bool long_to_decimal(text at, text end, int32_t scale, wide limit, wide *units) {
    const long_number found = read_long_number(at, end);
    *units = multiplied(found.first.digits, TENS[found.more_count]);
    units->low += found.more;
    units->high += units->low < found.more;
    return !found.is_longer && !found.first.too_long && to_scale(units, -found.first.exponent, scale, limit);
}

static inline bool two_digits(text at, int32_t *value) {
    *value = (at[0] - '0') * 10 + (at[1] - '0');
    return is_digit(at[0]) && is_digit(at[1]);
}

static const int64_t SECOND_US = 1000000, DAY_S = 86400;
/* 0001-01-01 and 10000-01-01, in days since 1970. */
static const int64_t FIRST_DAY = -719162, END_DAY = 2932897;

/* Skips YYYY-MM-DD; at least ten bytes are left. */
static inline text read_day(text at, int64_t *days) {
    static const uint8_t lengths[13] = {0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int32_t century, year, month, day;
    if (!two_digits(at, &century) || !two_digits(at + 2, &year) || at[4] != '-' || !two_digits(at + 5, &month) ||
        at[7] != '-' || !two_digits(at + 8, &day)) {
        return NULL;
    }
    year += century * 100;
    if (year < 1 || month < 1 || month > 12 || day < 1) {
        return NULL;
    }
    const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    if (day > lengths[month] + (month == 2 && leap)) {
        return NULL;
    }
    /* Years that begin in March, in eras of 400. */
    const int32_t shifted = year - (month <= 2), era = shifted / 400, of_era = shifted - era * 400;
    const int32_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    *days = (int64_t)era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
    return at + 10;
}

/* Skips the string of a date and time, whose opening quote was read. */
static inline text read_moment(text at, text end, bool with_zone, int64_t *microseconds) {
    int64_t days, shift_s = 0, fraction = 0;
    int32_t hour, minute, second;
    if (end - at < 20) { /* nineteen characters and a quote */
        return NULL;
    }
    text clock = read_day(at, &days);
    if (clock == NULL || (clock[0] != 'T' && clock[0] != 't' && clock[0] != ' ') || !two_digits(clock + 1, &hour) ||
        clock[3] != ':' || !two_digits(clock + 4, &minute) || clock[6] != ':' || !two_digits(clock + 7, &second) ||
        hour > 23 || minute > 59 || second > 59) {
        return NULL;
    }
    at = clock + 9;
    if (*at == '.') {
        int count = 0;
        for (at++; at < end && is_digit(*at); at++, count++) {
            if (count < 6) {
                fraction = fraction * 10 + (*at - '0');
            } else if (count >= 9 || *at != '0') {
                return NULL;
            }
        }
        if (count == 0) {
            return NULL;
        }
        for (; count < 6; count++) {
            fraction *= 10;
        }
    }
    if (with_zone && at < end && (*at == 'Z' || *at == 'z')) {
        at++;
    } else if (with_zone && at < end && (*at == '+' || *at == '-')) {
        const bool ahead = *at == '+';
        int32_t hours, minutes;
        if (end - at < 6 || !two_digits(at + 1, &hours)) {
            return NULL;
        }
        at += at[3] == ':' ? 4 : 3;
        if (end - at < 3 || !two_digits(at, &minutes) || hours > 23 || minutes > 59) {
            return NULL;
        }
        at += 2;
        shift_s = (int64_t)(hours * 60 + minutes) * 60 * (ahead ? -1 : 1);
    }
    if (at == end || *at != '"') {
        return NULL;
    }
    const int64_t seconds = days * DAY_S + hour * 3600 + minute * 60 + second + shift_s;
    if (seconds < FIRST_DAY * DAY_S || seconds >= END_DAY * DAY_S) {
        return NULL;
    }
    *microseconds = seconds * SECOND_US + fraction;
    return at + 1;
}

static inline int sextet(uint8_t sign) {
    if (sign >= 'A' && sign <= 'Z') {
        return sign - 'A';
    }
    if (sign >= 'a' && sign <= 'z') {
        return sign - 'a' + 26;
    }
    if (is_digit(sign)) {
        return sign - '0' + 52;
    }
    return sign == '+' ? 62 : sign == '/' ? 63 : -1;
}

/* Four base64 characters as one to three bytes, canonical; 0 if they are invalid. Only the last four may be padded. */
static inline int read_quartet(text at, uint8_t out[3]) {
    const int first = sextet(at[0]), second = sextet(at[1]), third = sextet(at[2]), fourth = sextet(at[3]);
    if (first < 0 || second < 0) {
        return 0;
    }
    out[0] = (uint8_t)(first << 2 | second >> 4);
    if (at[2] == '=' && at[3] == '=') {
        return (second & 15) == 0 ? 1 : 0;
    }
    if (third < 0) {
        return 0;
    }
    out[1] = (uint8_t)((second & 15) << 4 | third >> 2);
    if (at[3] == '=') {
        return (third & 3) == 0 ? 2 : 0;
    }
    if (fourth < 0) {
        return 0;
    }
    out[2] = (uint8_t)((third & 3) << 6 | fourth);
    return 3;
}

static inline int nibble(uint8_t sign) {
    const uint8_t letter = (uint8_t)(sign | 0x20);
    return is_digit(sign) ? sign - '0' : letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

#endif
