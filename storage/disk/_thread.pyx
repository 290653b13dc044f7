# cython: language_level=3, boundscheck=False, wraparound=False
# cython: initializedcheck=False, binding=False, embedsignature=False, auto_pickle=False
"""A thread that syncs files and knows no Python; ``disk.thread`` is the one user of this module.

Who gives it a file wakes it, and it wakes who watches its descriptor: neither waits for the
interpreter's lock on the way. ``_disk_thread.pyi`` describes the class.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport getenv
from libc.string cimport strcmp

cdef extern from *:
    """
    #include <errno.h>
    #include <pthread.h>
    #include <signal.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <sys/eventfd.h>
    #include <time.h>
    #include <unistd.h>

    #define PLACES 64

    typedef struct {
        int descriptor;
        int error;
        int64_t took_ns;
    } piece_t;

    /* Owned by the object and by its thread; the last of the two frees it. Pieces are counted
       for ever: taken <= ended <= given <= taken + PLACES, and each lies at its number's place. */
    typedef struct {
        pthread_mutex_t lock;
        pthread_cond_t is_given, is_ended;
        piece_t pieces[PLACES];
        uint64_t given, ended, taken;
        int owners, is_closed, bell;
        pid_t process;
    } disk_t;

    static int64_t now_ns(void)
    {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }

    /* To be called with the lock, which is given back. */
    static void leave(disk_t *disk)
    {
        int is_last = --disk->owners == 0;
        pthread_mutex_unlock(&disk->lock);
        if (!is_last)
            return;
        close(disk->bell);
        pthread_cond_destroy(&disk->is_given);
        pthread_cond_destroy(&disk->is_ended);
        pthread_mutex_destroy(&disk->lock);
        free(disk);
    }

    static void *sync_all_that_is_given(void *argument)
    {
        disk_t *disk = argument;
        pthread_mutex_lock(&disk->lock);
        for (;;) {
            while (disk->ended == disk->given && !disk->is_closed)
                pthread_cond_wait(&disk->is_given, &disk->lock);
            if (disk->ended == disk->given)
                break;
            piece_t *piece = &disk->pieces[disk->ended % PLACES];
            pthread_mutex_unlock(&disk->lock);
            int64_t begun_ns = now_ns();
            int error = fdatasync(piece->descriptor) == 0 ? 0 : errno;
            int64_t took_ns = now_ns() - begun_ns;
            pthread_mutex_lock(&disk->lock);
            piece->error = error;
            piece->took_ns = took_ns;
            disk->ended++;
            pthread_cond_broadcast(&disk->is_ended);
            pthread_mutex_unlock(&disk->lock);
            eventfd_write(disk->bell, 1);
            pthread_mutex_lock(&disk->lock);
        }
        leave(disk);
        return NULL;
    }

    /* An error number if there is no thread to be had. */
    static int disk_open(disk_t **made)
    {
        pthread_attr_t attributes;
        sigset_t all, before;
        pthread_t thread;
        disk_t *disk = calloc(1, sizeof(disk_t));
        if (disk == NULL)
            return ENOMEM;
        disk->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (disk->bell < 0) {
            int error = errno;
            free(disk);
            return error;
        }
        disk->owners = 2;
        disk->process = getpid();
        pthread_mutex_init(&disk->lock, NULL);
        pthread_cond_init(&disk->is_given, NULL);
        pthread_cond_init(&disk->is_ended, NULL);
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        /* Signals are the interpreter's affair. */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        int error = pthread_create(&thread, &attributes, sync_all_that_is_given, disk);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attributes);
        if (error != 0) {
            disk->owners = 1;
            pthread_mutex_lock(&disk->lock);
            leave(disk);
            return error;
        }
        *made = disk;
        return 0;
    }

    static int is_ours(const disk_t *disk) { return disk->process == getpid(); }

    static void disk_close(disk_t *disk)
    {
        /* A child of this process has the memory, but not the thread; its lock may be held. */
        if (!is_ours(disk)) {
            close(disk->bell);
            return;
        }
        pthread_mutex_lock(&disk->lock);
        disk->is_closed = 1;
        pthread_cond_signal(&disk->is_given);
        leave(disk);
    }

    /* The piece's number, counted from one; 0 if there is no room. */
    static uint64_t disk_give(disk_t *disk, int descriptor)
    {
        uint64_t number = 0;
        pthread_mutex_lock(&disk->lock);
        if (disk->given < disk->taken + PLACES) {
            disk->pieces[disk->given % PLACES].descriptor = descriptor;
            number = ++disk->given;
            pthread_cond_signal(&disk->is_given);
        }
        pthread_mutex_unlock(&disk->lock);
        return number;
    }

    static int disk_take(disk_t *disk, piece_t *taken)
    {
        pthread_mutex_lock(&disk->lock);
        int is_any = disk->taken < disk->ended;
        if (is_any)
            *taken = disk->pieces[disk->taken++ % PLACES];
        pthread_mutex_unlock(&disk->lock);
        return is_any;
    }

    static void disk_hush(disk_t *disk)
    {
        eventfd_t count;
        eventfd_read(disk->bell, &count);
    }

    static void disk_wait(disk_t *disk, uint64_t number)
    {
        pthread_mutex_lock(&disk->lock);
        while (disk->ended < number)
            pthread_cond_wait(&disk->is_ended, &disk->lock);
        pthread_mutex_unlock(&disk->lock);
    }
    """
    ctypedef struct piece_t:
        int error
        int64_t took_ns
    ctypedef struct disk_t:
        int bell
    int disk_open(disk_t **)
    bint is_ours(const disk_t *)
    void disk_close(disk_t *)
    uint64_t disk_give(disk_t *, int)
    bint disk_take(disk_t *, piece_t *)
    void disk_hush(disk_t *)
    void disk_wait(disk_t *, uint64_t) nogil

INTERFACE = 1
"""Changes with the class below, so that a module built from older source is not used."""

# Read here because this half of the storage layer does not know the operating system.
if getenv("ONCELOG_CODEC") != NULL and strcmp(getenv("ONCELOG_CODEC"), "python") == 0:
    raise ImportError("ONCELOG_CODEC=python: nothing compiled is wanted")


cdef class DiskThread:
    cdef disk_t *disk

    def __cinit__(self):
        error = disk_open(&self.disk)
        if error:
            raise OSError(error, "no thread for the disk")

    def __dealloc__(self):
        if self.disk != NULL:
            disk_close(self.disk)

    def fileno(self):
        return self.disk.bell

    def sync(self, int descriptor):
        return disk_give(self.disk, descriptor) if is_ours(self.disk) else 0

    def take_ended(self):
        cdef piece_t piece
        ended = []
        if not is_ours(self.disk):
            return ended
        # Before looking: what ends after that rings again.
        disk_hush(self.disk)
        while disk_take(self.disk, &piece):
            ended.append((piece.error, piece.took_ns))
        return ended

    def wait(self, uint64_t number):
        cdef disk_t *disk = self.disk
        if is_ours(disk):
            with nogil:
                disk_wait(disk, number)
