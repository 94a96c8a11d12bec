/* Refuses the nth of some system calls of this process, once: what a system without memory or descriptors does. Files of
   control groups are read from the folder that TREEFOLD_TEST_CGROUPS names, if it is set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static char armed[32];
static int countdown, error, happened;

/* Refuse the nth call of that name from here on. */
void refuse(const char* name, int nth, int with_error) {
  strncpy(armed, name, sizeof armed - 1);
  countdown = nth;
  error = with_error;
  happened = 0;
}
int has_refused(void) { return happened; }

static int is_refused(const char* name) {
  if (strcmp(armed, name) != 0 || countdown == 0 || --countdown != 0) return 0;
  happened = 1;
  errno = error;
  return 1;
}

#define REAL(type, name, ...) ((type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

int memfd_create(const char* name, unsigned flags) {
  return is_refused("memfd_create") ? -1 : REAL(int, memfd_create, const char*, unsigned)(name, flags);
}
int ftruncate(int fd, off_t length) {
  return is_refused("ftruncate") ? -1 : REAL(int, ftruncate, int, off_t)(fd, length);
}
int fallocate(int fd, int mode, off_t offset, off_t length) {
  if (mode == 0 && is_refused("fallocate")) return -1;
  return REAL(int, fallocate, int, int, off_t, off_t)(fd, mode, offset, length);
}
void* mmap(void* at, size_t length, int protection, int flags, int fd, off_t offset) {
  if (fd >= 0 && (flags & MAP_SHARED) && is_refused("mmap")) return MAP_FAILED;
  return (void*)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
}
ssize_t sendmsg(int fd, const struct msghdr* message, int flags) {
  return is_refused("sendmsg") ? -1 : REAL(ssize_t, sendmsg, int, const struct msghdr*, int)(fd, message, flags);
}
ssize_t recvmsg(int fd, struct msghdr* message, int flags) {
  return is_refused("recvmsg") ? -1 : REAL(ssize_t, recvmsg, int, struct msghdr*, int)(fd, message, flags);
}
int socket(int domain, int type, int protocol) {
  return is_refused("socket") ? -1 : REAL(int, socket, int, int, int)(domain, type, protocol);
}
int accept4(int fd, struct sockaddr* address, socklen_t* length, int flags) {
  if (is_refused("accept4")) return -1;
  return REAL(int, accept4, int, struct sockaddr*, socklen_t*, int)(fd, address, length, flags);
}
int pipe2(int ends[2], int flags) { return is_refused("pipe2") ? -1 : REAL(int, pipe2, int*, int)(ends, flags); }

static const char* pretended(const char* path, char* room) {
  const char* const folder = getenv("TREEFOLD_TEST_CGROUPS");
  if (folder == 0 || (strcmp(path, "/proc/self/cgroup") != 0 && strncmp(path, "/sys/fs/cgroup/", 15) != 0)) return path;
  snprintf(room, 4096, "%s%s", folder, path);
  return room;
}
/* With and without the suffix: which one a program calls depends on how it was compiled. */
#define PRETENDING(open_name, fopen_name)                                                            \
  int open_name(const char* path, int flags, ...) {                                                  \
    char room[4096];                                                                                 \
    va_list list;                                                                                    \
    va_start(list, flags);                                                                           \
    const int mode = va_arg(list, int);                                                              \
    va_end(list);                                                                                    \
    return REAL(int, open_name, const char*, int, int)(pretended(path, room), flags, mode);          \
  }                                                                                                  \
  FILE* fopen_name(const char* path, const char* mode) {                                             \
    char room[4096];                                                                                 \
    return REAL(FILE*, fopen_name, const char*, const char*)(pretended(path, room), mode);           \
  }
PRETENDING(open, fopen)
PRETENDING(open64, fopen64)
