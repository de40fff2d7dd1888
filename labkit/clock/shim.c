/* A wall clock that can be moved, for one process: preloaded, this answers clock_gettime, gettimeofday and time.
 *
 * How far it is off stands in a small file that the laboratory writes in place and that is mapped here, so a change
 * counts from the next look at the clock. Where it is missing it is made, and the clock is right. Only CLOCK_REALTIME
 * and its coarse twin move. CLOCK_MONOTONIC stays true, as it does when somebody sets the clock of a real machine.
 *
 * shown = true wall clock + jump_ns + drift_ns + (monotonic clock - since_ns) * extra_ppb / 10^9
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

struct deviation { /* the layout is known to clock/__init__.py too */
    uint64_t version; /* odd while the rest is being written */
    int64_t jump_ns;
    int64_t drift_ns;
    int64_t since_ns;
    int64_t extra_ppb;
};

static const volatile struct deviation *deviation;
static int (*true_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void prepare(void)
{
    true_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("LABKIT_CLOCK");
    int file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644) : -1;
    struct stat found = {0};
    if (file < 0)
        return;
    if (fstat(file, &found) == 0 && found.st_size == 0 && ftruncate(file, sizeof *deviation) == 0)
        found.st_size = sizeof *deviation;
    if (found.st_size >= (off_t)sizeof *deviation) {
        void *map = mmap(NULL, sizeof *deviation, PROT_READ, MAP_SHARED, file, 0);
        if (map != MAP_FAILED)
            deviation = map;
    }
    close(file);
}

static int read_true(clockid_t clock, struct timespec *now)
{
    /* An allocator may look at the clock while it starts, before `prepare`: then the kernel is asked itself. */
    return true_clock ? true_clock(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = read_true(clock, now);
    if (failed || !deviation || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t off, since, extra;
    uint64_t version;
    do {
        version = __atomic_load_n(&deviation->version, __ATOMIC_ACQUIRE);
        off = deviation->jump_ns + deviation->drift_ns;
        since = deviation->since_ns;
        extra = deviation->extra_ppb;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    } while (version % 2 || version != __atomic_load_n(&deviation->version, __ATOMIC_RELAXED));
    if (extra) {
        struct timespec steady;
        read_true(CLOCK_MONOTONIC, &steady);
        int64_t passed = steady.tv_sec * SECOND + steady.tv_nsec - since;
        off += (int64_t)((__int128)passed * extra / SECOND);
    }
    int64_t shown = now->tv_sec * SECOND + now->tv_nsec + off;
    now->tv_sec = shown / SECOND;
    now->tv_nsec = shown % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone; /* obsolete, and nobody passes one */
    if (clock_gettime(CLOCK_REALTIME, &precise))
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *copy)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (copy)
        *copy = now.tv_sec;
    return now.tv_sec;
}
