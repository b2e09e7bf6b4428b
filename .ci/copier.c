// Copies the files of a folder as plainly as it can be done: so many threads, each opens, reads and writes whole files with a
// buffer of its own. What a job costs beyond this is what the program adds to the file system's part.
//
// copier FROM TO THREADS
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char **names;
static size_t count, capacity, next_name;
static int from, to;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

// Makes the folders and lists the files below one of them.
static void list(const char *folder) {
    int at = openat(from, folder, O_RDONLY | O_DIRECTORY);
    DIR *entries = at < 0 ? NULL : fdopendir(at);
    if (!entries) fail(folder);
    for (struct dirent *entry; (entry = readdir(entries));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        char *name;
        if (asprintf(&name, "%s/%s", folder, entry->d_name) < 0) fail("memory");
        if (entry->d_type == DT_DIR) {
            if (mkdirat(to, name, 0777)) fail(name);
            list(name);
            free(name);
            continue;
        }
        if (count == capacity && !(names = realloc(names, (capacity = 2 * capacity + 64) * sizeof *names))) fail("memory");
        names[count++] = name;
    }
    closedir(entries);
}

static void *copy(void *unused) {
    size_t room = 0;
    char *buffer = NULL;
    for (size_t n; (n = __atomic_fetch_add(&next_name, 1, __ATOMIC_RELAXED)) < count;) {
        struct stat is;
        int in = openat(from, names[n], O_RDONLY), out = openat(to, names[n], O_WRONLY | O_CREAT | O_EXCL, 0666);
        if (in < 0 || out < 0 || fstat(in, &is)) fail(names[n]);
        if ((size_t)is.st_size > room && !(buffer = realloc(buffer, room = is.st_size))) fail("memory");
        if (pread(in, buffer, is.st_size, 0) != is.st_size || write(out, buffer, is.st_size) != is.st_size) fail(names[n]);
        close(in);
        close(out);
    }
    return unused;
}

int main(int argc, char **argv) {
    if (argc != 4 || mkdir(argv[2], 0777)) fail("copier FROM TO THREADS");
    from = open(argv[1], O_RDONLY | O_DIRECTORY);
    to = open(argv[2], O_RDONLY | O_DIRECTORY);
    if (from < 0 || to < 0) fail("folder");
    list(".");
    int threads = atoi(argv[3]);
    pthread_t all[64];
    for (int t = 0; t < threads && t < 64; t++) pthread_create(&all[t], NULL, copy, NULL);
    for (int t = 0; t < threads && t < 64; t++) pthread_join(all[t], NULL);
    return 0;
}
