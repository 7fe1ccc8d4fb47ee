#error <sys/sendfile.h> is Linux's
