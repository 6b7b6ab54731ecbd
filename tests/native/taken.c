/* Messages for the taker, to be compiled with sanitizers: a queue of its own, in which everything is made at random.

   Every value, key and target is a block of its own of exactly its size, every message is freed once, and now and then
   there is no memory. What was taken is compared with what was sent.

   taken ROUNDS SEED */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "chance.h"

static uint32_t scarce; /* of so many requests for memory one is refused; 0 for none */

static void *scarce_realloc(void *bytes, size_t size) {
    return scarce != 0 && chance(scarce) == 0 ? NULL : realloc(bytes, size);
}

#define realloc scarce_realloc
#define KDE_EXACT_ROOM 1
#include "../../stage_writer/native/taker.c"

enum { MOST_SENT = 600, TOPICS = 3, TARGETS = 18, SIZES = 15, MOST_HEADERS = 3 };

typedef struct {
    const char *topic, *problem;
    int64_t stamp;
    int32_t epoch;
    int32_t headers; /* how many, or the error without any */
    const char *header_keys[MOST_HEADERS];
    uint8_t *header_values[MOST_HEADERS];
    size_t header_sizes[MOST_HEADERS];
} origin;

typedef struct {
    message *sent[MOST_SENT];
    int64_t count, taken;
} line;

static const char *const topic_names[TOPICS] = {"orders", "", "a topic with a long name, and \xC3\xA9"};
static int64_t freed;

static void require(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

static void *block(size_t size) {
    void *bytes = malloc(size);
    require(bytes != NULL || size == 0, "no memory for the test");
    return bytes;
}

static uint8_t *some_bytes(size_t *size) {
    static const uint32_t sizes[] = {1, 4, 40, 400, 4000};
    *size = chance(sizes[chance(5)]);
    uint8_t *bytes = block(*size > 0 ? *size : 1);
    for (size_t at = 0; at < *size; at++) {
        bytes[at] = (uint8_t)chance(256);
    }
    return bytes;
}

static void some_headers(origin *from) {
    static const char *const keys[] = {"", "trace", "\xC3\xA9", "not \xFF in UTF-8"};
    from->headers = chance(3) == 0 ? NO_HEADERS : chance(20) == 0 ? -199 : (int32_t)chance(MOST_HEADERS + 1);
    for (int32_t place = 0; place < from->headers; place++) {
        from->header_keys[place] = keys[chance(4)];
        from->header_values[place] = chance(4) == 0 ? NULL : some_bytes(&from->header_sizes[place]);
    }
}

static message *some_message(int64_t offset, const message *before) {
    message *made = block(sizeof *made);
    origin *from = block(sizeof *from);
    memset(made, 0, sizeof *made);
    memset(from, 0, sizeof *from);
    some_headers(from);
    const bool same = before != NULL && chance(4) > 0;
    from->topic = same ? ((const origin *)before->own)->topic : topic_names[chance(TOPICS)];
    from->problem = chance(2) == 0 ? NULL : "the broker is away, as far as this text goes and a good deal beyond: "
                                            "................................................................."
                                            "................................................................."
                                            "................................................................."
                                            ".................................................................";
    from->stamp = (int64_t)chance(1000) - 1;
    from->epoch = same ? ((const origin *)before->own)->epoch : (int32_t)chance(3) - 1;
    made->own = from;
    made->topic = from; /* its own: a topic is told by its name */
    made->partition = same ? before->partition : (int32_t)chance(3);
    made->offset = offset;
    made->error = chance(20) == 0 ? -191 : 0;
    made->value = chance(10) == 0 ? NULL : some_bytes(&made->value_size);
    made->key = chance(3) == 0 ? NULL : some_bytes(&made->key_size);
    return made;
}

static void destroy(message *found) {
    const origin *from = found->own;
    for (int32_t place = 0; place < from->headers; place++) {
        free(from->header_values[place]);
    }
    free((void *)(uintptr_t)found->value);
    free((void *)(uintptr_t)found->key);
    free(found->own);
    free(found);
    freed++;
}

static int64_t consume(void *queue, int timeout_ms, message **found, size_t most) {
    line *from = queue;
    int64_t count = 0;
    (void)timeout_ms;
    const int64_t given = chance(5) == 0 ? 0 : (int64_t)chance((uint32_t)most) + 1;
    while (count < given && from->taken < from->count) {
        found[count++] = from->sent[from->taken++];
    }
    return count;
}

static int64_t timestamp(const message *found, int *kind) {
    *kind = 1;
    return ((const origin *)found->own)->stamp;
}

static const char *topic_name(const void *topic) { return ((const origin *)topic)->topic; }

static const char *error_text(const message *found) { return ((const origin *)found->own)->problem; }

static int32_t leader_epoch(const message *found) { return ((const origin *)found->own)->epoch; }

static int32_t headers(const message *found, void **given) {
    const origin *from = found->own;
    if (from->headers < 0) {
        return from->headers;
    }
    *given = found->own;
    return 0;
}

static int32_t header(const void *headers_, size_t place, const char **key, const void **value, size_t *size) {
    const origin *from = headers_;
    if ((int64_t)place >= from->headers) {
        return NO_HEADERS;
    }
    *key = from->header_keys[place];
    *value = from->header_values[place];
    *size = from->header_sizes[place];
    return 0;
}

/* As it was sent, while the message itself is gone. */
static message *copy_of(const message *from) {
    message *made = block(sizeof *made);
    origin *its = block(sizeof *its);
    *made = *from;
    *its = *(const origin *)from->own;
    made->own = its;
    for (int32_t place = 0; place < its->headers; place++) {
        if (its->header_values[place] != NULL) {
            const size_t size = its->header_sizes[place];
            its->header_values[place] = block(size > 0 ? size : 1);
            memcpy(its->header_values[place], ((const origin *)from->own)->header_values[place], size);
        }
    }
    if (from->value != NULL) {
        uint8_t *value = block(from->value_size > 0 ? from->value_size : 1);
        memcpy(value, from->value, from->value_size);
        made->value = value;
    }
    if (from->key != NULL) {
        uint8_t *key = block(from->key_size > 0 ? from->key_size : 1);
        memcpy(key, from->key, from->key_size);
        made->key = key;
    }
    return made;
}

static bool is_column(const uint8_t *ends, const uint8_t *validity, const uint8_t *data, int64_t entry,
                      const uint8_t *bytes, size_t size) {
    int32_t bounds[2];
    memcpy(bounds, ends + entry * 4, sizeof bounds);
    const bool valid = validity == NULL || (validity[entry >> 3] >> (entry & 7) & 1) != 0;
    if (bytes == NULL) {
        return !valid && bounds[0] == bounds[1];
    }
    return valid && (size_t)(bounds[1] - bounds[0]) == size && (size == 0 || memcmp(data + bounds[0], bytes, size) == 0);
}

static const char *name_of(const uint8_t *names, int64_t number) {
    const char *at = (const char *)names;
    while (number-- > 0) {
        at += strlen(at) + 1;
    }
    return at;
}

/* Whether the headers of an entry are those that were sent, where they are read. */
static bool are_headers(uint8_t *const *targets, int64_t entry, const origin *from, bool are_read) {
    int32_t bounds[2];
    memcpy(bounds, targets[11] + entry * 4, sizeof bounds);
    const bool valid = targets[14] == NULL || (targets[14][entry >> 3] >> (entry & 7) & 1) != 0;
    if (!are_read || from->headers == NO_HEADERS) {
        return !valid && bounds[0] == bounds[1];
    }
    if (from->headers < 0) {
        return valid && bounds[1] == bounds[0] + 1 &&
               is_column(targets[12], NULL, targets[16], bounds[0], (const uint8_t *)"\xFF", 1) &&
               is_column(targets[13], targets[15], targets[17], bounds[0], NULL, 0);
    }
    bool same = valid && bounds[1] - bounds[0] == from->headers;
    for (int32_t place = 0; same && place < from->headers; place++) {
        const char *key = from->header_keys[place];
        same = is_column(targets[12], NULL, targets[16], bounds[0] + place, (const uint8_t *)key, strlen(key)) &&
               is_column(targets[13], targets[15], targets[17], bounds[0] + place, from->header_values[place],
                         from->header_sizes[place]);
    }
    return same;
}

/* Compare what is given with the messages from `first` on; how many of them that were. */
static int64_t given(taker *self, message *const *sent, const char *with_headers) {
    int64_t sizes[SIZES], entry = 0, problem = 0, run = -1, place = 0;
    kde_taker_sizes(self, sizes);
    const int64_t count = sizes[0], bytes[TARGETS] = {
        count * 8, count * 8, (count + 1) * 4, (count + 1) * 4, sizes[5], sizes[6], sizes[4],
        sizes[1] * RUN * 8, sizes[2] * PROBLEM * 8, sizes[7], sizes[8], (sizes[9] + 1) * 4, (sizes[11] + 1) * 4,
        (sizes[11] + 1) * 4, sizes[10], sizes[14], sizes[12], sizes[13],
    };
    require(sizes[9] == (with_headers == NULL ? 0 : count), "headers for other messages");
    uint8_t *targets[TARGETS];
    for (int target = 0; target < TARGETS; target++) {
        targets[target] = bytes[target] > 0 ? block((size_t)bytes[target]) : NULL;
    }
    uint8_t *values = kde_taker_give(self, targets);
    const int64_t *offsets = (const int64_t *)(void *)targets[0], *stamps = (const int64_t *)(void *)targets[1];
    const int64_t *runs = (const int64_t *)(void *)targets[7], *problems = (const int64_t *)(void *)targets[8];
    for (; entry < count || problem < sizes[2]; place++) {
        const message *was = sent[place];
        const origin *from = was->own;
        if (was->error != 0) {
            const int64_t *told = problems + PROBLEM * problem++;
            const int64_t size = from->problem == NULL ? 0 : (int64_t)strlen(from->problem);
            require(problem <= sizes[2] && strcmp(name_of(targets[10], told[0]), from->topic) == 0 &&
                        told[1] == was->partition && told[2] == was->offset && told[3] == was->error &&
                        told[5] == (size < MOST_TEXT ? size : MOST_TEXT) &&
                        (told[5] == 0 || memcmp(targets[9] + told[4], from->problem, (size_t)told[5]) == 0),
                    "another problem");
            continue;
        }
        if (run + 1 < sizes[1] && runs[RUN * (run + 1) + 2] == entry) {
            run++;
        }
        require(entry < count && run >= 0 && offsets[entry] == was->offset && stamps[entry] == from->stamp, "another");
        require(strcmp(name_of(targets[10], runs[RUN * run]), from->topic) == 0 &&
                    runs[RUN * run + 1] == was->partition && runs[RUN * run + 3] == from->epoch,
                "of another partition");
        require(is_column(targets[2], targets[4], values, entry, was->value, was->value_size), "another value");
        require(is_column(targets[3], targets[5], targets[6], entry, was->key, was->key_size), "another key");
        require(with_headers == NULL || are_headers(targets, entry, from, strcmp(with_headers, from->topic) == 0),
                "other headers");
        entry++;
    }
    for (int target = 0; target < TARGETS; target++) {
        free(targets[target]);
    }
    kde_bytes_free(values);
    return place;
}

int main(int argument_count, char **arguments) {
    if (argument_count != 3) {
        return 2;
    }
    const calls functions = {consume, destroy, timestamp, topic_name, error_text, leader_epoch, headers, header};
    int64_t taken = 0, refused = 0;
    state = strtoull(arguments[2], NULL, 10) * 2 + 1;
    for (long round = strtol(arguments[1], NULL, 10); round > 0; round--) {
        static line queue;
        static message *copies[MOST_SENT];
        int64_t compared = 0;
        queue.count = chance(MOST_SENT) + 1;
        queue.taken = freed = 0;
        for (int64_t place = 0; place < queue.count; place++) {
            queue.sent[place] = some_message(place * 7, place > 0 ? queue.sent[place - 1] : NULL);
            copies[place] = copy_of(queue.sent[place]);
        }
        taker *self = kde_taker_new(&functions, &queue);
        require(self != NULL, "no memory for the test");
        const char *with_headers = chance(2) == 0 ? NULL : topic_names[chance(TOPICS)];
        require(with_headers == NULL || kde_taker_read_headers(self, with_headers), "no memory for the test");
        scarce = chance(3) == 0 ? 1 + chance(3000) : 0;
        while (queue.taken < queue.count) {
            int64_t value_bytes = -1;
            const int64_t held = kde_taker_take(self, 1 + chance(400), 1 + chance(100000), 0, &value_bytes);
            require(freed == queue.taken, "what was taken is not freed");
            if (held < 0) {
                compared = queue.taken; /* all that was held is lost */
                refused++;
            } else if (chance(2) == 0) {
                const int64_t count = given(self, copies + compared, with_headers);
                taken += count;
                compared += count;
            }
        }
        compared += given(self, copies + compared, with_headers);
        require(compared == queue.taken, "something was left out");
        scarce = 0;
        kde_taker_free(self);
        for (int64_t place = 0; place < queue.count; place++) {
            destroy(copies[place]);
        }
    }
    printf("%lld taken, %lld refused\n", (long long)taken, (long long)refused);
    return 0;
}
