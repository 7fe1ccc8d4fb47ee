#error <sys/signalfd.h> is Linux's
