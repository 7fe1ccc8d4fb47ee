#error <sys/timerfd.h> is Linux's
