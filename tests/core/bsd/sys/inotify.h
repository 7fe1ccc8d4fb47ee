#error <sys/inotify.h> is Linux's
