/* Hostile bytes for the reader, to be compiled with sanitizers: messages of a corpus, changed at random.

   Every buffer is a block of its own of exactly the size that is told, so that a byte beside it is noticed. What is
   read is another test's subject; here nothing may be touched that is not ours, and no rule of C be broken.

   hostile CORPUS ROUNDS SEED, where CORPUS is as `tests/unit/stage_writer/native/test_native_sanitized.py` writes it. */

#include <stdio.h>

#define KDE_EXACT_ROOM 1
#include "../../stage_writer/native/json_reader.c"
#include "chance.h"

static void *take_bytes(FILE *file, size_t size) {
    void *bytes = malloc(size > 0 ? size : 1);
    if (bytes == NULL || fread(bytes, 1, size, file) != size) {
        fprintf(stderr, "the corpus is cut off\n");
        exit(2);
    }
    return bytes;
}

static int32_t take_number(FILE *file) {
    int32_t value;
    if (fread(&value, sizeof value, 1, file) != 1) {
        fprintf(stderr, "the corpus is cut off\n");
        exit(2);
    }
    return value;
}

typedef struct {
    uint8_t *bytes;
    int32_t size;
} message;

/* A message of the corpus, changed in none to three places. */
static int32_t changed(const message *from, uint8_t *out, int32_t room_for) {
    static const char signs[] = "{}[]\",:\\untf0123456789.-+eE \n\x80\xC3\xED\xF0\x00";
    int32_t size = from->size < room_for ? from->size : room_for;
    memcpy(out, from->bytes, (size_t)size);
    for (uint32_t times = chance(4); times > 0; times--) {
        const int32_t at = size > 0 ? (int32_t)chance((uint32_t)size) : 0;
        switch (chance(4)) {
        case 0: /* cut off */
            size = at;
            break;
        case 1: /* another byte */
            if (size > 0) {
                out[at] = (uint8_t)signs[chance(sizeof signs)];
            }
            break;
        case 2: /* a part again */
            if (size > at) {
                const int32_t count = 1 + (int32_t)chance((uint32_t)(size - at));
                if (size + count <= room_for) {
                    memmove(out + at + count, out + at, (size_t)(size - at));
                    size += count;
                }
            }
            break;
        default: /* any bit */
            if (size > 0) {
                out[at] ^= (uint8_t)(1 << chance(8));
            }
        }
    }
    return size;
}

static void take_out(reader *self) {
    int64_t *sizes = calloc((size_t)self->count * SIZES, sizeof *sizes);
    uint8_t **targets = calloc((size_t)self->count * 3, sizeof *targets);
    kde_sizes(self, sizes);
    for (int32_t place = 0; place < self->count; place++) {
        for (int part = 0; part < 3; part++) {
            targets[place * 3 + part] = malloc((size_t)sizes[place * SIZES + part + 1]);
        }
        if (sizes[place * SIZES + 1] == 0) {
            free(targets[place * 3]);
            targets[place * 3] = NULL;
        }
    }
    kde_take(self, targets);
    for (int32_t place = 0; place < self->count * 3; place++) {
        free(targets[place]);
    }
    free(targets);
    free(sizes);
}

enum { MOST_MESSAGES = 12, MOST_BYTES = 4096 };

static int64_t play(reader *self, const message *corpus, int32_t count) {
    uint8_t verdicts[MOST_MESSAGES], *work = malloc(MOST_BYTES);
    const int32_t messages = (int32_t)chance(MOST_MESSAGES + 1);
    int32_t *offsets = malloc(((size_t)messages + 1) * sizeof *offsets), size = 0;
    uint8_t *data = NULL;
    offsets[0] = 0;
    for (int32_t place = 0; place < messages; place++) {
        const int32_t added = changed(&corpus[chance((uint32_t)count)], work, MOST_BYTES);
        data = realloc(data, (size_t)(size + added) + 1);
        memcpy(data + size, work, (size_t)added);
        size += added;
        offsets[place + 1] = size;
    }
    uint8_t *exact = malloc((size_t)size > 0 ? (size_t)size : 1);
    if (size > 0) {
        memcpy(exact, data, (size_t)size);
    }
    const int64_t taken = kde_read(self, exact, size, offsets, messages, verdicts);
    if (chance(8) > 0) {
        take_out(self);
    }
    free(exact);
    free(data);
    free(offsets);
    free(work);
    return taken;
}

int main(int count, char **words) {
    if (count != 4) {
        fprintf(stderr, "hostile CORPUS ROUNDS SEED\n");
        return 2;
    }
    FILE *file = fopen(words[1], "rb");
    if (file == NULL) {
        perror(words[1]);
        return 2;
    }
    const long rounds = atol(words[2]);
    state = strtoull(words[3], NULL, 10) * 2 + 1;
    const int32_t nodes = take_number(file);
    int32_t *parts = take_bytes(file, (size_t)nodes * PARTS * sizeof *parts);
    const int32_t names_size = take_number(file);
    uint8_t *names = take_bytes(file, (size_t)names_size);
    uint64_t *powers = take_bytes(file, (size_t)POWERS * 2 * sizeof *powers);
    const int32_t messages = take_number(file);
    message *corpus = malloc((size_t)messages * sizeof *corpus);
    for (int32_t place = 0; place < messages; place++) {
        corpus[place].size = take_number(file);
        corpus[place].bytes = take_bytes(file, (size_t)corpus[place].size);
    }
    fclose(file);
    reader *self = kde_new(parts, nodes, names, names_size, powers);
    if (self == NULL) {
        fprintf(stderr, "no reader for this schema\n");
        return 2;
    }
    int64_t taken = 0;
    for (long round = 0; round < rounds; round++) {
        taken += play(self, corpus, messages);
    }
    printf("%lld messages taken\n", (long long)taken);
    kde_free(self);
    for (int32_t place = 0; place < messages; place++) {
        free(corpus[place].bytes);
    }
    free(corpus);
    free(parts);
    free(names);
    free(powers);
    return 0;
}
