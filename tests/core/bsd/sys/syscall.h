#error <sys/syscall.h> is Linux's
