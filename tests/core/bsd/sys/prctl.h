#error <sys/prctl.h> is Linux's
