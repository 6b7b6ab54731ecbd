/* Takes messages from a queue of librdkafka into Arrow columns, without an object for each.

   Rules:

   1. librdkafka is not linked: its functions are passed in, from the library that the consumer uses. Only its public
      interface is used: the functions, and the fields of a message.
   2. A call takes few messages at a time from the queue, while they are in the processor's cache, and frees them.
   3. Offsets have 32 bits (`columns.h`): beyond 2^31 - 1 bytes taking fails, as it does if memory is short.
   4. Errors and ends of partitions arrive through the queue like messages, and are stored separately.
   5. Headers are read only for the topics that need them: librdkafka does not even parse the others. Headers that it
      cannot parse become one with a name that is not UTF-8, so the code that reads the names refuses the message.
   6. A partition that its topic no longer has is reported by an error in its queue that is not a message: librdkafka
      calls the client's error callback, in the thread that takes. Outside of calls of its own, confluent-kafka's
      callback would end the process, so errors are not passed on while a thread takes. */

#include "columns.h"

#if defined(_WIN32)
#define PUBLIC __declspec(dllexport)
#else
#define PUBLIC __attribute__((visibility("default")))
#endif

enum { AT_ONCE = 256, FIRST_GUESS_BYTES = 64 * 1024, MOST_TEXT = 256, RUN = 4, PROBLEM = 6, MESSAGE_BYTES = 32 };
enum { OFFSETS, STAMPS, VALUES, KEYS, HEADERS, HEADER_KEYS, HEADER_VALUES, COLUMNS };
enum { NO_HEADERS = -156, HEADER_BYTES = 8 };

/* As in rdkafka.h. */
typedef struct {
    int32_t error;
    void *topic;
    int32_t partition;
    const uint8_t *value;
    size_t value_size;
    const uint8_t *key;
    size_t key_size;
    int64_t offset;
    void *own;
} message;

typedef struct {
    int64_t (*consume)(void *queue, int timeout_ms, message **found, size_t most);
    void (*destroy)(message *found);
    int64_t (*timestamp)(const message *found, int *kind);
    const char *(*topic_name)(const void *topic);
    const char *(*error_text)(const message *found);
    int32_t (*leader_epoch)(const message *found);
    int32_t (*headers)(const message *found, void **headers);
    int32_t (*header)(const void *headers, size_t place, const char **key, const void **value, size_t *size);
} calls;

typedef struct {
    calls calls;
    void *queue;
    node columns[COLUMNS];
    area runs, problems, names, texts; /* a run: topic, partition, first message, leader epoch */
    area with_headers;                 /* the numbers of the topics whose headers are read */
    int64_t run_count, problem_count, names_size, texts_size, topic_count, with_headers_count;
    int64_t guess_bytes, last_topic, last_partition, last_epoch;
    bool reads_headers; /* of the last topic */
} taker;

typedef void error_callback(void *client, int error, const char *reason, void *opaque);

static error_callback *guarded;
static _Thread_local bool is_taking;

static void report_error(void *client, int error, const char *reason, void *opaque) {
    if (!is_taking && guarded != NULL) {
        guarded(client, error, reason, opaque);
    }
}

/* Returns the callback to set in place of a client's own (rule 6), the same for all clients. A client without one keeps
   none. */
PUBLIC error_callback *kde_guard_errors(error_callback *callback) {
    if (callback != NULL && callback != report_error) {
        guarded = callback;
    }
    return report_error;
}

static void empty(taker *self) {
    for (int column = 0; column < COLUMNS; column++) {
        node *at = &self->columns[column];
        release(&at->validity, 0);
        release(&at->data, data_bytes(at));
        release(&at->values, value_bytes(at));
        at->length = 0;
    }
    self->run_count = self->problem_count = self->texts_size = 0;
    self->last_topic = -1;
}

PUBLIC void kde_taker_free(taker *self) {
    empty(self);
    free(self->runs.bytes);
    free(self->problems.bytes);
    free(self->names.bytes);
    free(self->texts.bytes);
    free(self->with_headers.bytes);
    free(self);
}

PUBLIC taker *kde_taker_new(const calls *given, void *queue) {
    static const int32_t kinds[COLUMNS] = {LONG, LONG, BASE64, BASE64, LIST, BASE64, BASE64};
    taker *self = calloc(1, sizeof *self);
    if (self != NULL) {
        self->calls = *given;
        self->queue = queue;
        self->guess_bytes = FIRST_GUESS_BYTES;
        for (int column = 0; column < COLUMNS; column++) {
            self->columns[column].kind = kinds[column];
            self->columns[column].nullable = true;
        }
        empty(self);
    }
    return self;
}

/* The number of a topic, by its name. Names are stored one after the other, each with its zero byte. -1 if memory is
   short. */
static int64_t number_of(taker *self, const char *name) {
    const int64_t size = (int64_t)strlen(name) + 1;
    int64_t place = 0;
    for (int64_t number = 0; number < self->topic_count; number++) {
        const char *known = (const char *)self->names.bytes + place;
        if (strcmp(known, name) == 0) {
            return number;
        }
        place += (int64_t)strlen(known) + 1;
    }
    if (!add_bytes(&self->names, &self->names_size, (const uint8_t *)name, size)) {
        return -1;
    }
    return self->topic_count++;
}

static int64_t topic_of(taker *self, const void *topic) {
    return number_of(self, topic == NULL ? "" : self->calls.topic_name(topic));
}

static bool wants_headers(const taker *self, int64_t topic) {
    for (int64_t place = 0; place < self->with_headers_count; place++) {
        int64_t number;
        memcpy(&number, self->with_headers.bytes + place * 8, sizeof number);
        if (number == topic) {
            return true;
        }
    }
    return false;
}

static bool add_numbers(area *place, int64_t *count, const int64_t *numbers, int64_t size) {
    int64_t bytes = *count * size * 8;
    if (!add_bytes(place, &bytes, (const uint8_t *)numbers, size * 8)) {
        return false;
    }
    (*count)++;
    return true;
}

static bool add_problem(taker *self, const message *found, int64_t topic) {
    const char *text = self->calls.error_text(found);
    int64_t size = 0;
    while (text != NULL && size < MOST_TEXT && text[size] != 0) {
        size++;
    }
    const int64_t numbers[PROBLEM] = {topic, found->partition, found->offset, found->error, self->texts_size, size};
    return add_bytes(&self->texts, &self->texts_size, (const uint8_t *)text, size) &&
           add_numbers(&self->problems, &self->problem_count, numbers, PROBLEM);
}

static inline bool add_binary(node *at, const uint8_t *bytes, size_t size) {
    if (bytes == NULL) {
        return add_null(at);
    }
    int64_t end = offset_at(at, at->length);
    return size <= INT32_MAX && add_bytes(&at->data, &end, bytes, (int64_t)size) && add_offset(at, end) &&
           end_entry(at, true);
}

/* Rule 5. The columns for headers are empty before the first topic that needs them. */
static bool add_headers(taker *self, const message *found) {
    node *lists = &self->columns[HEADERS], *keys = &self->columns[HEADER_KEYS], *values = &self->columns[HEADER_VALUES];
    static const uint8_t unreadable[] = {0xFF};
    void *headers = NULL;
    const char *key = NULL;
    const void *value = NULL;
    size_t size = 0;
    while (lists->length < self->columns[OFFSETS].length) {
        if (!add_null(lists)) {
            return false;
        }
    }
    const int32_t error = self->reads_headers ? self->calls.headers(found, &headers) : NO_HEADERS;
    if (error == NO_HEADERS) {
        return add_null(lists);
    }
    if (error != 0 && !(add_binary(keys, unreadable, 1) && add_null(values))) {
        return false;
    }
    for (size_t place = 0; error == 0 && self->calls.header(headers, place, &key, &value, &size) == 0; place++) {
        if (!add_binary(keys, (const uint8_t *)key, strlen(key)) || !add_binary(values, value, size)) {
            return false;
        }
    }
    return add_offset(lists, keys->length) && end_entry(lists, true);
}

/* Reads the headers of a topic's messages from now on; false if memory is short. */
PUBLIC bool kde_taker_read_headers(taker *self, const char *name) {
    const int64_t number = number_of(self, name);
    self->last_topic = -1;
    return number >= 0 &&
           (wants_headers(self, number) || add_numbers(&self->with_headers, &self->with_headers_count, &number, 1));
}

static bool add_message(taker *self, const message *found, const void **topic) {
    int kind;
    const int64_t stamp = self->calls.timestamp(found, &kind);
    const int64_t epoch = self->calls.leader_epoch(found);
    if (found->topic != *topic || found->partition != self->last_partition || epoch != self->last_epoch ||
        self->last_topic < 0) {
        const int64_t number = topic_of(self, found->topic);
        if (number < 0) {
            return false;
        }
        if (number != self->last_topic || found->partition != self->last_partition || epoch != self->last_epoch) {
            const int64_t numbers[RUN] = {number, found->partition, self->columns[OFFSETS].length, epoch};
            if (!add_numbers(&self->runs, &self->run_count, numbers, RUN)) {
                return false;
            }
        }
        *topic = found->topic;
        self->last_topic = number;
        self->last_partition = found->partition;
        self->last_epoch = epoch;
        self->reads_headers = wants_headers(self, number);
    }
    if (self->with_headers_count > 0 && !add_headers(self, found)) {
        return false;
    }
    return add_fixed(&self->columns[OFFSETS], &found->offset, 8) && add_fixed(&self->columns[STAMPS], &stamp, 8) &&
           add_binary(&self->columns[VALUES], found->value, found->value_size) &&
           add_binary(&self->columns[KEYS], found->key, found->key_size);
}

/* The size of the messages held: values, keys, headers, and their entries in the columns. Tombstones have no value. */
static int64_t held_bytes(const taker *self) {
    const node *values = &self->columns[VALUES], *keys = &self->columns[KEYS];
    const node *header_keys = &self->columns[HEADER_KEYS];
    return data_bytes(values) + data_bytes(keys) + values->length * MESSAGE_BYTES + data_bytes(header_keys) +
           data_bytes(&self->columns[HEADER_VALUES]) + header_keys->length * HEADER_BYTES;
}

/* Takes what is in the queue, or waits up to the timeout for the first message; until there are `most` messages, or
   about `most_bytes`, including those taken before. Returns how many are held; -1 if memory is short: then all are
   lost. */
PUBLIC int64_t kde_taker_take(taker *self, int64_t most, int64_t most_bytes, int timeout_ms, int64_t *bytes_taken) {
    message *found[AT_ONCE];
    const void *topic = NULL;
    bool fits = true;
    int64_t wanted = 1;
    for (;;) {
        const int64_t before = held_bytes(self);
        const int64_t left = most - self->columns[OFFSETS].length;
        if (left <= 0 || before >= most_bytes) {
            break;
        }
        wanted = wanted > left ? left : wanted;
        is_taking = true;
        const int64_t count = self->calls.consume(self->queue, timeout_ms, found, (size_t)wanted);
        is_taking = false;
        if (count <= 0) {
            break;
        }
        for (int64_t place = 0; place < count; place++) {
            if (fits && found[place]->error != 0) {
                const int64_t number = topic_of(self, found[place]->topic);
                fits = number >= 0 && add_problem(self, found[place], number);
            } else if (fits) {
                fits = add_message(self, found[place], &topic);
            }
            self->calls.destroy(found[place]);
        }
        if (!fits) {
            empty(self);
            return -1;
        }
        const int64_t after = held_bytes(self);
        self->guess_bytes = (after - before) / count + 1;
        wanted = (most_bytes - after) / self->guess_bytes;
        wanted = wanted < 1 ? 1 : wanted > AT_ONCE ? AT_ONCE : wanted;
        timeout_ms = 0;
    }
    *bytes_taken = held_bytes(self);
    return self->columns[OFFSETS].length;
}

/* Sets the sizes of everything that `kde_taker_give` copies, and the number of topics. */
PUBLIC void kde_taker_sizes(const taker *self, int64_t *sizes) {
    const node *values = &self->columns[VALUES], *keys = &self->columns[KEYS], *lists = &self->columns[HEADERS];
    const node *header_keys = &self->columns[HEADER_KEYS], *header_values = &self->columns[HEADER_VALUES];
    const int64_t found[] = {
        self->columns[OFFSETS].length,
        self->run_count,
        self->problem_count,
        data_bytes(values),
        data_bytes(keys),
        values->validity.bytes == NULL ? 0 : (values->length + 7) / 8,
        keys->validity.bytes == NULL ? 0 : (keys->length + 7) / 8,
        self->texts_size,
        self->names_size,
        lists->length,
        lists->validity.bytes == NULL ? 0 : (lists->length + 7) / 8,
        header_keys->length,
        data_bytes(header_keys),
        data_bytes(header_values),
        header_values->validity.bytes == NULL ? 0 : (header_values->length + 7) / 8,
    };
    memcpy(sizes, found, sizeof found);
}

static void put(uint8_t *target, const uint8_t *from, int64_t size) {
    if (size > 0) {
        memcpy(target, from, (size_t)size);
    }
}

static void put_ends(uint8_t *target, const node *from) {
    memset(target, 0, 4);
    if (from->length > 0) {
        put(target + 4, from->values.bytes + 4, from->length * 4);
    }
}

static void put_validity(uint8_t *target, const node *from) {
    if (from->validity.bytes != NULL) {
        put(target, from->validity.bytes, (from->length + 7) / 8);
    }
}

/* Copies everything out, and forgets it. The values' bytes are handed over instead: free them with `kde_bytes_free`.
   Targets: offsets, timestamps, offsets of values and of keys, validity of values and of keys, bytes of keys, runs,
   problems, texts, names; offsets of headers, of their keys and of their values, validity of headers and of their
   values, bytes of their keys and of their values. */
PUBLIC uint8_t *kde_taker_give(taker *self, uint8_t *const *targets) {
    node *values = &self->columns[VALUES], *keys = &self->columns[KEYS];
    const int64_t length = values->length;
    put(targets[0], self->columns[OFFSETS].values.bytes, length * 8);
    put(targets[1], self->columns[STAMPS].values.bytes, length * 8);
    put_ends(targets[2], values);
    put_ends(targets[3], keys);
    put_validity(targets[4], values);
    put_validity(targets[5], keys);
    put(targets[6], keys->data.bytes, data_bytes(keys));
    put(targets[7], self->runs.bytes, self->run_count * RUN * 8);
    put(targets[8], self->problems.bytes, self->problem_count * PROBLEM * 8);
    put(targets[9], self->texts.bytes, self->texts_size);
    put(targets[10], self->names.bytes, self->names_size);
    put_ends(targets[11], &self->columns[HEADERS]);
    put_ends(targets[12], &self->columns[HEADER_KEYS]);
    put_ends(targets[13], &self->columns[HEADER_VALUES]);
    put_validity(targets[14], &self->columns[HEADERS]);
    put_validity(targets[15], &self->columns[HEADER_VALUES]);
    put(targets[16], self->columns[HEADER_KEYS].data.bytes, data_bytes(&self->columns[HEADER_KEYS]));
    put(targets[17], self->columns[HEADER_VALUES].data.bytes, data_bytes(&self->columns[HEADER_VALUES]));
    uint8_t *given = values->data.bytes;
    const int64_t given_size = data_bytes(values);
    values->data.bytes = NULL;
    empty(self);
    values->data.expected = given_size;
    return given;
}

PUBLIC void kde_bytes_free(uint8_t *bytes) { free(bytes); }
