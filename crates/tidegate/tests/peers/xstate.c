/* Lets a user-mode Linux run on processors with more registers than it knows.
 *
 * It hands the registers of its processes from one to the next by ptrace, in a buffer of the size
 * that they had when it was written. The kernel below it gives as many of them as fit, but takes
 * them back only in full: where there are more (the tiles of AMX), its first process never starts.
 * So, wherever it hands back fewer than there are, the rest stays as it is.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* NT_X86_XSTATE of linux/elf.h. */
enum { XSTATE = 0x202 };

long ptrace(enum __ptrace_request request, ...) {
    va_list rest;
    va_start(rest, request);
    pid_t pid = va_arg(rest, pid_t);
    void *address = va_arg(rest, void *);
    void *data = va_arg(rest, void *);
    va_end(rest);
    if (request == PTRACE_SETREGSET && (long)address == XSTATE) {
        /* Six times what there is with AMX. */
        static __thread char buffer[65536] __attribute__((aligned(64)));
        struct iovec *given = data, all = { buffer, sizeof buffer };
        if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, address, &all) < 0)
            return -1;
        if (given->iov_len < all.iov_len) {
            memcpy(buffer, given->iov_base, given->iov_len);
            return syscall(SYS_ptrace, request, pid, address, &all);
        }
    }
    /* The C library returns what these read, the kernel writes it. */
    if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
        long value;
        if (syscall(SYS_ptrace, request, pid, address, &value) < 0)
            return -1;
        errno = 0;
        return value;
    }
    return syscall(SYS_ptrace, request, pid, address, data);
}
