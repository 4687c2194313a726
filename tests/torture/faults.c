/* Faults between a process and its file system, and a wall clock that can be set.
 *
 * This library is preloaded (LD_PRELOAD) into a process. FIRETRAIL_FAULTS names a control file that
 * is mapped here and in the process that controls the faults (faults.py has the same layout). Only
 * files below the root that the control file names are affected, never sockets or libraries.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SYNC = 1, ALLOCATE = 2, WRITE = 4, CREATE = 8, NAME = 16, REMOVE = 32 };
enum { RULES = 8, TEXT = 256, KILL = -1, HOLD = -2 };

struct rule {
    int32_t active, operations, code, delay_ms;
    int64_t skip, times, hits, hit_ns;
    char match[TEXT], path[TEXT];
};
struct control {
    int64_t clock_ns, operations, waiting, held, last;
    char root[TEXT], place[TEXT];
    struct rule rules[RULES];
};

static struct control *control;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("FIRETRAIL_FAULTS");
    int descriptor = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    if (descriptor < 0) return;
    void *mapped = mmap(0, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (mapped != MAP_FAILED) control = mapped;
}

static void pass(int milliseconds) {
    struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    __atomic_add_fetch(&control->waiting, 1, __ATOMIC_SEQ_CST);
    while (nanosleep(&left, &left) && errno == EINTR) {}
    __atomic_sub_fetch(&control->waiting, 1, __ATOMIC_SEQ_CST);
}

/* Note when and where a rule took effect first. */
static void note(struct rule *rule, const char *path) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    snprintf(rule->path, TEXT, "%s", path);
    rule->hit_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Return the errno that this operation fails with, or 0 if it does not fail. */
static int judged(int operation, const char *path) {
    if (!control || !path || !strstr(path, control->root)) return 0;
    __atomic_add_fetch(&control->operations, 1, __ATOMIC_SEQ_CST);
    for (int k = 0; k < RULES; k++) {
        struct rule *rule = &control->rules[k];
        if (!__atomic_load_n(&rule->active, __ATOMIC_SEQ_CST)) continue;
        if (!(rule->operations & operation) || !strstr(path, rule->match)) continue;
        if (__atomic_sub_fetch(&rule->skip, 1, __ATOMIC_SEQ_CST) >= 0) continue;
        if (__atomic_sub_fetch(&rule->times, 1, __ATOMIC_SEQ_CST) < 0) continue;
        if (!rule->hit_ns) note(rule, path);
        __atomic_add_fetch(&rule->hits, 1, __ATOMIC_SEQ_CST);
        if (rule->delay_ms) pass(rule->delay_ms);
        if (rule->code < 0) {
            control->last = operation;
            snprintf(control->place, sizeof control->place, "%s", path);
            __atomic_store_n(&control->held, getpid(), __ATOMIC_SEQ_CST);
            syscall(SYS_kill, getpid(), rule->code == KILL ? SIGKILL : SIGSTOP);
            continue;
        }
        if (rule->code) return rule->code;
    }
    return 0;
}

static int judged_file(int operation, int descriptor) {
    char link[64], path[PATH_MAX];
    if (!control) return 0;
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (length < 0) return 0;
    path[length] = 0;
    return judged(operation, path);
}

/* Judge an operation on a path that is relative to an open folder. */
static int judged_at(int operation, int folder, const char *name) {
    char link[64], path[PATH_MAX];
    if (!control || !name) return 0;
    if (folder == AT_FDCWD || *name == '/') return judged(operation, name);
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (length < 0) return 0;
    snprintf(path + length, sizeof path - length, "/%s", name);
    return judged(operation, path);
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAILS(failure) \
    do { int code = (failure); if (code) { errno = code; return -1; } } while (0)

int fsync(int file) { REAL(fsync); FAILS(judged_file(SYNC, file)); return real(file); }
int fdatasync(int file) { REAL(fdatasync); FAILS(judged_file(SYNC, file)); return real(file); }

int ftruncate(int file, off_t size) {
    REAL(ftruncate); FAILS(judged_file(ALLOCATE, file)); return real(file, size);
}
int ftruncate64(int file, off64_t size) {
    REAL(ftruncate64); FAILS(judged_file(ALLOCATE, file)); return real(file, size);
}
int posix_fallocate(int file, off_t at, off_t size) {
    REAL(posix_fallocate);
    int code = judged_file(ALLOCATE, file);
    return code ? code : real(file, at, size);
}
int posix_fallocate64(int file, off64_t at, off64_t size) {
    REAL(posix_fallocate64);
    int code = judged_file(ALLOCATE, file);
    return code ? code : real(file, at, size);
}
ssize_t write(int file, const void *data, size_t size) {
    REAL(write); FAILS(judged_file(WRITE, file)); return real(file, data, size);
}
ssize_t writev(int file, const struct iovec *data, int count) {
    REAL(writev); FAILS(judged_file(WRITE, file)); return real(file, data, count);
}
ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    REAL(pwrite); FAILS(judged_file(WRITE, file)); return real(file, data, size, at);
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    REAL(pwrite64); FAILS(judged_file(WRITE, file)); return real(file, data, size, at);
}
ssize_t pwritev(int file, const struct iovec *data, int count, off_t at) {
    REAL(pwritev); FAILS(judged_file(WRITE, file)); return real(file, data, count, at);
}
ssize_t pwritev64(int file, const struct iovec *data, int count, off64_t at) {
    REAL(pwritev64); FAILS(judged_file(WRITE, file)); return real(file, data, count, at);
}

static int mode_of(int flags, va_list more) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
}
static int is_new(int flags) { return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE; }

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = mode_of(flags, more);
    va_end(more);
    REAL(open);
    if (is_new(flags)) FAILS(judged(CREATE, path));
    return real(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = mode_of(flags, more);
    va_end(more);
    REAL(open64);
    if (is_new(flags)) FAILS(judged(CREATE, path));
    return real(path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = mode_of(flags, more);
    va_end(more);
    REAL(openat);
    if (is_new(flags)) FAILS(judged_at(CREATE, folder, path));
    return real(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = mode_of(flags, more);
    va_end(more);
    REAL(openat64);
    if (is_new(flags)) FAILS(judged_at(CREATE, folder, path));
    return real(folder, path, flags, mode);
}
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir); FAILS(judged(CREATE, path)); return real(path, mode);
}
int rename(const char *from, const char *to) {
    REAL(rename); FAILS(judged(NAME, to)); return real(from, to);
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    REAL(renameat2); FAILS(judged_at(NAME, b, to)); return real(a, from, b, to, flags);
}
int link(const char *from, const char *to) {
    REAL(link); FAILS(judged(NAME, to)); return real(from, to);
}
int linkat(int a, const char *from, int b, const char *to, int flags) {
    REAL(linkat); FAILS(judged(NAME, to)); return real(a, from, b, to, flags);
}
int unlink(const char *path) { REAL(unlink); FAILS(judged(REMOVE, path)); return real(path); }
int rmdir(const char *path) { REAL(rmdir); FAILS(judged(REMOVE, path)); return real(path); }
int remove(const char *path) { REAL(remove); FAILS(judged(REMOVE, path)); return real(path); }
int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat); FAILS(judged_at(REMOVE, folder, path)); return real(folder, path, flags);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    REAL(clock_gettime);
    int result = real(which, now);
    if (!result && control && which == CLOCK_REALTIME) {
        int64_t moved = now->tv_nsec + control->clock_ns % 1000000000;
        now->tv_sec += control->clock_ns / 1000000000 + (moved >= 1000000000) - (moved < 0);
        now->tv_nsec = (moved + 1000000000) % 1000000000;
    }
    return result;
}
