/*
 * The part of WiredTiger that the lab needs, as plain functions. WiredTiger's own interface consists of structs of
 * function pointers. A foreign caller would have to describe these structs field by field, and differently for each
 * version.
 *
 * A session is one WT_SESSION with one cursor on the table. A session belongs to one thread. Functions return 0,
 * SHIM_ABSENT, SHIM_CONFLICT, or an error code of WiredTiger or of the system. An update that conflicts with another
 * transaction is retried here, unless it belongs to a transaction of the caller; then the result is SHIM_CONFLICT, and
 * the caller must roll back. Bytes that a cursor returns stay valid until the next call on the same session.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <wiredtiger.h>

#define SHIM_ABSENT 1000001
#define SHIM_CONFLICT 1000002
#define TABLE "table:lab"

struct shim_session {
    WT_SESSION *session;
    WT_CURSOR *cursor;
};

const char *shim_wt_error(int code) { return wiredtiger_strerror(code); }

const char *shim_wt_version(void) { return wiredtiger_version(NULL, NULL, NULL); }

int shim_wt_open(const char *directory, const char *config, const char *table_config, WT_CONNECTION **out) {
    WT_CONNECTION *connection = NULL;
    WT_SESSION *session = NULL;
    int code = wiredtiger_open(directory, NULL, config, &connection);
    if (code != 0) return code;
    code = connection->open_session(connection, NULL, NULL, &session);
    if (code == 0) code = session->create(session, TABLE, table_config);
    if (code == 0) code = session->close(session, NULL);
    if (code != 0) {
        (void)connection->close(connection, NULL);
        return code;
    }
    *out = connection;
    return 0;
}

int shim_wt_close(WT_CONNECTION *connection) { return connection->close(connection, NULL); }

void shim_wt_session_close(struct shim_session *s) {
    (void)s->session->close(s->session, NULL);
    free(s);
}

int shim_wt_session_open(WT_CONNECTION *connection, struct shim_session **out) {
    struct shim_session *s = calloc(1, sizeof *s);
    int code;
    if (s == NULL) return ENOMEM;
    code = connection->open_session(connection, NULL, "isolation=snapshot", &s->session);
    if (code != 0) {
        free(s);
        return code;
    }
    code = s->session->open_cursor(s->session, TABLE, NULL, "overwrite=true", &s->cursor);
    if (code != 0) {
        shim_wt_session_close(s);
        return code;
    }
    *out = s;
    return 0;
}

static void set_key(WT_CURSOR *cursor, const void *key, size_t key_len) {
    WT_ITEM item;
    memset(&item, 0, sizeof item);
    item.data = key;
    item.size = key_len;
    cursor->set_key(cursor, &item);
}

static void set_value(WT_CURSOR *cursor, const void *value, size_t value_len) {
    WT_ITEM item;
    memset(&item, 0, sizeof item);
    item.data = value;
    item.size = value_len;
    cursor->set_value(cursor, &item);
}

static int conflict(int code) { return code == WT_ROLLBACK ? SHIM_CONFLICT : code; }

static int absent(int code) { return code == WT_NOTFOUND ? SHIM_ABSENT : conflict(code); }

int shim_wt_put(struct shim_session *s, const void *key, size_t key_len, const void *value, size_t value_len) {
    int code;
    do {
        set_key(s->cursor, key, key_len);
        set_value(s->cursor, value, value_len);
        code = s->cursor->insert(s->cursor);
    } while (code == WT_ROLLBACK);
    return code;
}

int shim_wt_delete(struct shim_session *s, const void *key, size_t key_len) {
    int code;
    do {
        set_key(s->cursor, key, key_len);
        code = s->cursor->remove(s->cursor);
    } while (code == WT_ROLLBACK);
    (void)s->cursor->reset(s->cursor);
    return code == WT_NOTFOUND ? 0 : code;
}

static int here(struct shim_session *s, const void **key, size_t *key_len, const void **value, size_t *value_len) {
    WT_ITEM item;
    int code = s->cursor->get_key(s->cursor, &item);
    if (code != 0) return code;
    *key = item.data;
    *key_len = item.size;
    code = s->cursor->get_value(s->cursor, &item);
    if (code != 0) return code;
    *value = item.data;
    *value_len = item.size;
    return 0;
}

int shim_wt_reset(struct shim_session *s) { return s->cursor->reset(s->cursor); }

/* Positions the cursor at a key; the value is valid until the cursor is reset. */
int shim_wt_find(struct shim_session *s, const void *key, size_t key_len, const void **value, size_t *value_len) {
    const void *found;
    size_t found_len;
    int code;
    set_key(s->cursor, key, key_len);
    code = s->cursor->search(s->cursor);
    return code != 0 ? absent(code) : here(s, &found, &found_len, value, value_len);
}

/* Positions the cursor at the first key that is at least the one given. */
static int at_least(WT_CURSOR *cursor, const void *key, size_t key_len) {
    int exact = 0, code;
    set_key(cursor, key, key_len);
    code = cursor->search_near(cursor, &exact);
    return code == 0 && exact < 0 ? cursor->next(cursor) : code;
}

int shim_wt_seek(struct shim_session *s, const void *key, size_t key_len, const void **found, size_t *found_len,
                 const void **value, size_t *value_len) {
    int code = key_len == 0 ? s->cursor->next(s->cursor) : at_least(s->cursor, key, key_len);
    return code != 0 ? absent(code) : here(s, found, found_len, value, value_len);
}

int shim_wt_next(struct shim_session *s, const void **found, size_t *found_len, const void **value,
                 size_t *value_len) {
    int code = s->cursor->next(s->cursor);
    return code != 0 ? absent(code) : here(s, found, found_len, value, value_len);
}

/* Positions the cursor at the last key that is at most the one given. */
int shim_wt_seek_back(struct shim_session *s, const void *key, size_t key_len, const void **found, size_t *found_len,
                      const void **value, size_t *value_len) {
    int exact = 0, code;
    set_key(s->cursor, key, key_len);
    code = s->cursor->search_near(s->cursor, &exact);
    if (code == 0 && exact > 0) code = s->cursor->prev(s->cursor);
    return code != 0 ? absent(code) : here(s, found, found_len, value, value_len);
}

int shim_wt_prev(struct shim_session *s, const void **found, size_t *found_len, const void **value,
                 size_t *value_len) {
    int code = s->cursor->prev(s->cursor);
    return code != 0 ? absent(code) : here(s, found, found_len, value, value_len);
}

int shim_wt_begin(struct shim_session *s) { return s->session->begin_transaction(s->session, NULL); }

int shim_wt_rollback(struct shim_session *s) { return s->session->rollback_transaction(s->session, NULL); }

int shim_wt_commit(struct shim_session *s) { return conflict(s->session->commit_transaction(s->session, NULL)); }

/* An insertion inside a transaction of the caller. */
int shim_wt_put_once(struct shim_session *s, const void *key, size_t key_len, const void *value, size_t value_len) {
    set_key(s->cursor, key, key_len);
    set_value(s->cursor, value, value_len);
    return conflict(s->cursor->insert(s->cursor));
}

/* A removal inside a transaction of the caller. */
int shim_wt_delete_once(struct shim_session *s, const void *key, size_t key_len) {
    int code;
    set_key(s->cursor, key, key_len);
    code = s->cursor->remove(s->cursor);
    return code == WT_NOTFOUND ? 0 : conflict(code);
}

static int read_add_write(struct shim_session *s, const void *key, size_t key_len, uint64_t delta) {
    const void *value;
    size_t value_len;
    uint64_t sum = 0;
    int code = shim_wt_find(s, key, key_len, &value, &value_len);
    if (code == 0) {
        if (value_len != sizeof sum) return EINVAL;
        memcpy(&sum, value, sizeof sum); /* little-endian machines only; the Rust side asserts it */
    } else if (code != SHIM_ABSENT)
        return code;
    sum += delta;
    set_key(s->cursor, key, key_len);
    set_value(s->cursor, &sum, sizeof sum);
    return s->cursor->insert(s->cursor);
}

/* Runs the statement in a transaction, again while it loses against others. */
#define IN_TRANSACTION(s, code, statement)                                          \
    do {                                                                            \
        code = shim_wt_begin(s);                                                    \
        if (code != 0) return code;                                                 \
        code = (statement);                                                         \
        if (code == 0)                                                              \
            code = s->session->commit_transaction(s->session, NULL);                \
        else                                                                        \
            (void)shim_wt_rollback(s);                                              \
    } while (code == WT_ROLLBACK)

int shim_wt_add(struct shim_session *s, const void *key, size_t key_len, uint64_t delta) {
    int code;
    IN_TRANSACTION(s, code, read_add_write(s, key, key_len, delta));
    return code;
}

/* One write of a batch; a delete has no value. */
struct shim_write {
    const void *key;
    size_t key_len;
    const void *value;
    size_t value_len;
    int is_delete;
};

static int write_all(struct shim_session *s, const struct shim_write *writes, size_t count) {
    size_t i;
    int code = 0;
    for (i = 0; code == 0 && i < count; i++) {
        set_key(s->cursor, writes[i].key, writes[i].key_len);
        if (writes[i].is_delete) {
            code = s->cursor->remove(s->cursor);
            if (code == WT_NOTFOUND) code = 0;
        } else {
            set_value(s->cursor, writes[i].value, writes[i].value_len);
            code = s->cursor->insert(s->cursor);
        }
    }
    return code;
}

int shim_wt_write(struct shim_session *s, const struct shim_write *writes, size_t count) {
    int code;
    IN_TRANSACTION(s, code, write_all(s, writes, count));
    return code;
}

/* Truncation takes a closed range of keys that exist, so both ends are looked for. */
static int truncate_range(struct shim_session *s, WT_CURSOR *stop, const void *from, size_t from_len, const void *to,
                          size_t to_len) {
    int exact = 0, order = 0;
    int code = at_least(s->cursor, from, from_len);
    if (code != 0) return code == WT_NOTFOUND ? 0 : code;
    set_key(stop, to, to_len);
    code = stop->search_near(stop, &exact);
    if (code == 0 && exact >= 0) code = stop->prev(stop);
    if (code != 0) return code == WT_NOTFOUND ? 0 : code;
    code = s->cursor->compare(s->cursor, stop, &order);
    if (code != 0 || order > 0) return code;
    return s->session->truncate(s->session, NULL, s->cursor, stop, NULL);
}

int shim_wt_delete_range(struct shim_session *s, const void *from, size_t from_len, const void *to, size_t to_len) {
    WT_CURSOR *stop = NULL;
    int code = s->session->open_cursor(s->session, TABLE, NULL, NULL, &stop);
    if (code != 0) return code;
    do {
        code = shim_wt_begin(s);
        if (code != 0) break;
        code = truncate_range(s, stop, from, from_len, to, to_len);
        if (code == 0)
            code = s->session->commit_transaction(s->session, NULL);
        else
            (void)shim_wt_rollback(s);
    } while (code == WT_ROLLBACK);
    (void)s->cursor->reset(s->cursor);
    (void)stop->close(stop);
    return code;
}

int shim_wt_checkpoint(WT_CONNECTION *connection) {
    WT_SESSION *session = NULL;
    int code = connection->open_session(connection, NULL, NULL, &session);
    if (code != 0) return code;
    code = session->checkpoint(session, NULL);
    (void)session->close(session, NULL);
    return code;
}

/* Fills as many figures as there are names here, in the order that the Rust side lists them. */
int shim_wt_figures(WT_CONNECTION *connection, int64_t *out, size_t count) {
    static const int keys[] = {WT_STAT_CONN_BLOCK_BYTE_READ, WT_STAT_CONN_BLOCK_BYTE_WRITE,
                               WT_STAT_CONN_LOG_BYTES_WRITTEN, WT_STAT_CONN_CACHE_BYTES_INUSE,
                               WT_STAT_CONN_CACHE_BYTES_DIRTY};
    WT_SESSION *session = NULL;
    WT_CURSOR *cursor = NULL;
    size_t i;
    int code = connection->open_session(connection, NULL, NULL, &session);
    if (code != 0) return code;
    code = session->open_cursor(session, "statistics:", NULL, NULL, &cursor);
    for (i = 0; code == 0 && i < count && i < sizeof keys / sizeof *keys; i++) {
        const char *description, *printable;
        cursor->set_key(cursor, keys[i]);
        code = cursor->search(cursor);
        if (code == 0) code = cursor->get_value(cursor, &description, &printable, &out[i]);
    }
    (void)session->close(session, NULL);
    return code;
}
