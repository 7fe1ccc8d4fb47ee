#error <sys/eventfd.h> is Linux's
