#error <sys/epoll.h> is Linux's
