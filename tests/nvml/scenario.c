#include "scenario.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SLOTS 16384 /* a power of two, several times the entries of the largest scenario */
#define LONGEST 256

static struct { char *key, *value; } table[SLOTS];
static struct stat loaded;

static unsigned slot_of(const char *key) {
    unsigned hash = 2166136261u;
    for (const char *c = key; *c; c++) hash = (hash ^ (unsigned char)*c) * 16777619u;
    for (hash &= SLOTS - 1; table[hash].key && strcmp(table[hash].key, key); hash = (hash + 1) & (SLOTS - 1)) {}
    return hash;
}

static void put(const char *key, const char *value) {
    unsigned slot = slot_of(key);
    if (!table[slot].key) table[slot].key = strdup(key);
    free(table[slot].value);
    table[slot].value = strdup(value);
}

static const char *skip(const char *at) {
    while (isspace((unsigned char)*at) || *at == ',' || *at == ':') at++;
    return at;
}

/* Strings are read without escapes: names in scenarios need none. */
static const char *string(const char *at, char *out) {
    size_t length = strcspn(++at, "\"");
    if (length >= LONGEST || at[length] != '"') return NULL;
    memcpy(out, at, length);
    out[length] = 0;
    return at + length + 1;
}

static const char *value(const char *at, const char *path) {
    char text[LONGEST], below[2 * LONGEST];
    at = skip(at);
    if (*at == '"') {
        at = string(at, text);
        if (at) put(path, text);
        return at;
    }
    if (*at == '{' || *at == '[') {
        char open = *at, close = open == '{' ? '}' : ']';
        int count = 0;
        for (at = skip(at + 1); at && *at && *at != close; at = at ? skip(at) : NULL, count++) {
            if (open == '{') {
                if (*at != '"' || !(at = string(at, text))) return NULL;
            } else {
                snprintf(text, sizeof text, "%d", count);
            }
            if (snprintf(below, sizeof below, "%s%s%s", path, *path ? "/" : "", text) >= LONGEST) return NULL;
            at = value(at, below);
        }
        if (!at || *at != close) return NULL;
        snprintf(below, sizeof below, "%s#", path);
        snprintf(text, sizeof text, "%d", count);
        put(below, text);
        return at + 1;
    }
    size_t length = strcspn(at, ",]} \t\r\n");
    if (!length || length >= LONGEST) return NULL;
    memcpy(text, at, length);
    text[length] = 0;
    if (!strcmp(text, "true")) strcpy(text, "1");
    if (!strcmp(text, "false")) strcpy(text, "0");
    if (strcmp(text, "null")) put(path, text);
    return at + length;
}

int scenario_load(const char *path) {
    struct stat now;
    if (!path || stat(path, &now)) return -1;
    if (now.st_ino == loaded.st_ino && now.st_mtim.tv_sec == loaded.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == loaded.st_mtim.tv_nsec && now.st_size == loaded.st_size)
        return 0;
    FILE *file = fopen(path, "r");
    char *text = calloc(1, (size_t)now.st_size + 1);
    if (!file || !text || fread(text, 1, (size_t)now.st_size, file) != (size_t)now.st_size) return -1;
    fclose(file);
    for (int i = 0; i < SLOTS; i++) {
        free(table[i].key);
        free(table[i].value);
        table[i].key = table[i].value = NULL;
    }
    const char *end = value(text, "");
    free(text);
    loaded = now;
    return end ? 1 : -1;
}

#define KEY(format)                                     \
    char key[LONGEST];                                  \
    va_list arguments;                                  \
    va_start(arguments, format);                        \
    vsnprintf(key, sizeof key - 1, format, arguments);  \
    va_end(arguments)

const char *scenario_text(const char *format, ...) {
    KEY(format);
    return table[slot_of(key)].value;
}

long long scenario_number(long long otherwise, const char *format, ...) {
    KEY(format);
    const char *found = table[slot_of(key)].value;
    return found ? atoll(found) : otherwise;
}

int scenario_count(const char *format, ...) {
    KEY(format);
    strcat(key, "#");
    const char *found = table[slot_of(key)].value;
    return found ? atoi(found) : 0;
}
