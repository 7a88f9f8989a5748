/* The wall clock of a program, moved by a test: preloaded, it answers with what a file says.

   The file holds microseconds since the epoch, an int64 of this machine's byte order. Redis takes its wall time from
   gettimeofday and time, for the ends of blocking commands too, which it looks for ten times a second; Node's Date and
   Python's time come from gettimeofday and clock_gettime. Timers run by the monotonic clock, which stays the machine's
   own. */

#define _GNU_SOURCE

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *file;

static int64_t micros(void) {
    if (!file) {
        const char *path = getenv("FROZEN_CLOCK");
        int opened = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *mapped = mmap(NULL, sizeof *file, PROT_READ, MAP_SHARED, opened, 0);
        if (mapped == MAP_FAILED)
            abort();
        close(opened);
        file = mapped;
    }
    return *file;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    int64_t at = micros();
    now->tv_sec = at / 1000000;
    now->tv_usec = at % 1000000;
    return 0;
}

time_t time(time_t *now) {
    time_t seconds = micros() / 1000000;
    if (now)
        *now = seconds;
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
        return (int)syscall(SYS_clock_gettime, clock, now);
    int64_t at = micros();
    now->tv_sec = at / 1000000;
    now->tv_nsec = at % 1000000 * 1000;
    return 0;
}
