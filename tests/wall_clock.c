/* A wall clock that a test moves, for the processes that load this library with LD_PRELOAD.
 *
 * The file that SOAK_CLOCK names has the offset in nanoseconds. The monotonic clock and sleeps are the real
 * ones, as when the clock of a machine is set. (libfaketime 0.9.10 also replaces sleeps, and lets
 * time.sleep() of Python fail with EINVAL.)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static volatile int64_t *offset_ns;
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static long (*real_syscall)(long, ...);
static int (*real_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_clockwait)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);

__attribute__((constructor)) static void load(void)
{
    static int loaded;
    if (loaded)
        return;
    loaded = 1;
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_syscall = dlsym(RTLD_NEXT, "syscall");
    real_timedwait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real_timedwait)
        real_timedwait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    real_clockwait = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    const char *path = getenv("SOAK_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        offset_ns = mapped;
}

static struct timespec moved(const struct timespec *time, int sign)
{
    int64_t shift = offset_ns ? sign * *offset_ns : 0;
    int64_t ns = time->tv_nsec + shift % SECOND;
    struct timespec result = {time->tv_sec + shift / SECOND, 0};
    if (ns < 0)
        ns += SECOND, result.tv_sec--;
    if (ns >= SECOND)
        ns -= SECOND, result.tv_sec++;
    result.tv_nsec = ns;
    return result;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    load();
    int failed = real_clock_gettime(clock, time);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        *time = moved(time, 1);
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}

/* Deadlines of the wall clock, which the kernel knows without the offset. */

static int is_wall_time(const struct timespec *time)
{
    /* No machine has been up for 30 years, and some libraries write "never" as the largest number. */
    return time && time->tv_sec > 1000000000 && time->tv_sec < 100000000000;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline)
{
    load();
    struct timespec real = is_wall_time(deadline) ? moved(deadline, -1) : *deadline;
    return real_timedwait(condition, mutex, &real);
}

int pthread_cond_clockwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict deadline)
{
    load();
    struct timespec real = clock == CLOCK_REALTIME && is_wall_time(deadline) ? moved(deadline, -1) : *deadline;
    return real_clockwait(condition, mutex, clock, &real);
}

long syscall(long number, ...)
{
    long words[6];
    struct timespec real;
    va_list arguments;
    load();
    va_start(arguments, number);
    for (int i = 0; i < 6; i++)
        words[i] = va_arg(arguments, long);
    va_end(arguments);
    if (number == SYS_futex && words[1] & FUTEX_CLOCK_REALTIME && is_wall_time((struct timespec *)words[3])) {
        real = moved((struct timespec *)words[3], -1);
        words[3] = (long)&real;
    }
    return real_syscall(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
