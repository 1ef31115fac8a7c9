/* A JSON file as a flat table: "gpus/0/memory/used" -> "1024". Read anew whenever the file is replaced. */
#ifndef SCENARIO_H
#define SCENARIO_H

int scenario_load(const char *path);              /* 1 if the table was read anew, 0 if it is current, -1 on a bad file */
const char *scenario_text(const char *format, ...); /* NULL if there is no such entry */
long long scenario_number(long long otherwise, const char *format, ...);
int scenario_count(const char *format, ...);      /* length of a list or number of keys of an object; 0 if absent */

#endif
