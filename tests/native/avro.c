/* Hostile bytes for the reader of Avro, to be compiled with sanitizers: records of a corpus, changed at random.

   Every buffer is a block of its own of exactly the size that is told, so that a byte beside it is noticed.

   avro CORPUS ROUNDS SEED, where CORPUS is as `tests/unit/stage_writer/native/test_native_sanitized.py` writes it: the number
   of nodes, their parts, the size of the texts, the texts, the number of records, and each with its size before it. */

#include <stdio.h>

#define KDE_EXACT_ROOM 1
#include "../../stage_writer/native/avro_reader.c"
#include "chance.h"

enum { MOST_RECORDS = 12 };

static void *take_bytes(FILE *file, size_t size) {
    void *bytes = malloc(size > 0 ? size : 1);
    if (bytes == NULL || fread(bytes, 1, size, file) != size) {
        fprintf(stderr, "the corpus is cut off\n");
        exit(2);
    }
    return bytes;
}

static int32_t take_number(FILE *file) {
    int32_t *bytes = take_bytes(file, sizeof *bytes), value = *bytes;
    free(bytes);
    return value;
}

static int64_t play(avro_reader *self, uint8_t *const *records, const int32_t *sizes, int32_t count) {
    const int32_t chosen = 1 + (int32_t)chance(MOST_RECORDS);
    int64_t offsets[MOST_RECORDS + 1] = {0}, ends[MOST_RECORDS], taken = 0;
    int32_t places[MOST_RECORDS];
    uint8_t verdicts[MOST_RECORDS];
    for (int32_t at = 0; at < chosen; at++) {
        places[at] = (int32_t)chance((uint32_t)count);
        offsets[at + 1] = offsets[at] + (int64_t)chance((uint32_t)sizes[places[at]] + 1); /* cut off anywhere */
        if (chance(4) > 0) {
            offsets[at + 1] = offsets[at] + sizes[places[at]];
        }
    }
    const int64_t size = offsets[chosen];
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    for (int32_t at = 0; at < chosen; at++) {
        memcpy(data + offsets[at], records[places[at]], (size_t)(offsets[at + 1] - offsets[at]));
    }
    for (uint32_t times = chance(6); times > 0 && size > 0; times--) {
        const int64_t at = (int64_t)chance((uint32_t)size);
        data[at] = chance(2) ? (uint8_t)chance(256) : (uint8_t)(data[at] ^ (1 << chance(8)));
    }
    const int64_t length = kde_avro_read(self, data, size, offsets, chosen, verdicts, ends);
    if (length < 0) {
        exit(3);
    }
    for (int32_t at = 0; at < chosen; at++) {
        taken += verdicts[at];
    }
    if (chance(8) > 0) {
        uint8_t *out = malloc(length > 0 ? (size_t)length : 1);
        kde_avro_take(self, out);
        free(out);
    }
    free(data);
    return taken;
}

int main(int count, char **words) {
    FILE *file = count == 4 ? fopen(words[1], "rb") : NULL;
    if (file == NULL) {
        fprintf(stderr, "avro CORPUS ROUNDS SEED\n");
        return 2;
    }
    const long rounds = atol(words[2]);
    state = strtoull(words[3], NULL, 10) * 2 + 1;
    const int32_t nodes = take_number(file);
    int32_t *parts = take_bytes(file, (size_t)nodes * A_PARTS * sizeof *parts);
    const int32_t texts_size = take_number(file);
    uint8_t *texts = take_bytes(file, (size_t)texts_size);
    const int32_t number = take_number(file);
    uint8_t **records = malloc((size_t)number * sizeof *records);
    int32_t *sizes = malloc((size_t)number * sizeof *sizes);
    for (int32_t at = 0; at < number; at++) {
        sizes[at] = take_number(file);
        records[at] = take_bytes(file, (size_t)sizes[at]);
    }
    fclose(file);
    avro_reader *self = kde_avro_new(parts, nodes, texts, texts_size);
    if (self == NULL) {
        fprintf(stderr, "no reader for this plan\n");
        return 2;
    }
    int64_t taken = 0;
    for (long round = 0; round < rounds; round++) {
        taken += play(self, records, sizes, number);
    }
    kde_avro_free(self);
    for (long round = 0; round < rounds; round++) { /* plans that are none */
        int32_t *other = malloc((size_t)nodes * A_PARTS * sizeof *other);
        memcpy(other, parts, (size_t)nodes * A_PARTS * sizeof *other);
        other[chance((uint32_t)nodes * A_PARTS)] = (int32_t)chance(40) - 8;
        self = kde_avro_new(other, nodes, texts, texts_size);
        if (self != NULL && round % 16 == 0) {
            play(self, records, sizes, number);
        }
        kde_avro_free(self);
        free(other);
    }
    for (int32_t at = 0; at < number; at++) {
        free(records[at]);
    }
    free(records);
    free(sizes);
    free(parts);
    free(texts);
    printf("%lld\n", (long long)taken);
    return 0;
}
